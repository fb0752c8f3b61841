//! Archives and copies that the daemon of a mount makes in process, and cases without it. Each test
//! is a script; `$KIND` is the format.

/// Prelude of these scripts, after the common prelude.
///
/// `mounted OPTIONS`: `a.img` is mounted on `m`; `done_with`: it is unmounted and sound. `listing
/// DIR`: everything below it, without sizes of directories. `made`: how many requests made names;
/// `in_process COMMAND...` and `by_requests COMMAND...`: none did, or some.
pub(crate) const PRELUDE: &str = r#"
trap 'umount -l b m 2> /dev/null || true' EXIT
mounted() { mkdir -p m; "$SAPWOOD" mount -q -o "$1" a.img m; chmod 755 .; [ $1 = ro ] || chmod 755 m; }
done_with() { "$SAPWOOD" umount m; "$SAPWOOD" check -q a.img; }
listing() {
    (cd "$1"; find . -mindepth 1 -type d -printf '%P %y %m %U %G %T@\n' -o ! -type d -printf '%P %y %m %U %G %T@ %s %n %l\n' | grep -v '^lost+found' | sort
    find . -mindepth 1 ! -type l -print0 | sort -z | xargs -0 getfattr -h -d -m '^(user|trusted|system)' | sed '/^$/d')
}
made() { { "$SAPWOOD" stats --json m | grep -oE '"(create|mknod|mkdir|symlink|link)": *[0-9]+' || true; } | sort; }
in_process() { local before code=0; before=$(made); "$@" || code=$?; [ "$before" = "$(made)" ] || { echo "by requests: $*"; exit 1; }; return $code; }
by_requests() { local before; before=$(made); "$@"; [ "$before" != "$(made)" ] || { echo "in process: $*"; exit 1; }; }
"#;

/// Both kinds of image.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "an_archive_in_a_mount_is_what_tar_extracts",
        r#"mkdir -p t/d/empty t/shut ref; head -c 300000 /dev/urandom > t/d/big; echo x > t/d/f; touch t/nothing; chown 7:8 t/d/f
        ln t/d/f t/hard; ln -s d/f t/soft; mkfifo t/pipe; mknod t/null c 1 3; chmod 4711 t/d/big; truncate -s 900000 t/hole
        setfattr -n user.k -v v t/d/f; setfattr -n trusted.k -v w t/d; echo y > t/shut/f; chmod 555 t/shut; chmod 2770 t/d; touch -d @1700000001.5 t/d/f t/d
        tar --format=pax --xattrs --xattrs-include='*' -cf a.tar t; tar --xattrs --xattrs-include='*' -xpf a.tar -C ref; listing ref > expected
        for sandbox in on off; do image -f a.img; mounted sandbox=$sandbox
        for round in 1 2; do in_process "$SAPWOOD" untar -q a.tar m; listing m > found; diff expected found; done
        for f in d/big d/f hard hole shut/f; do cmp ref/t/$f m/t/$f; done
        mkdir m/in; gzip -c a.tar | in_process "$SAPWOOD" untar -q - m/in; listing m/in | diff expected -; [ $(stat -c %b m/in/t/hole) = 0 ]; done_with; done
        "$SAPWOOD" cat a.img:in/t/d/f | grep -cx x"#,
    ),
    (
        "names_in_a_listed_directory_are_listed",
        r#"mkdir t/d; echo x > t/d/f; tar cf a.tar -C t d; image a.img; mounted rw; ls -a m m/none > known 2>&1 || true; [ ! -e m/d ]; mkdir m/e; ls m/e
        in_process "$SAPWOOD" untar -q a.tar m; ls m | grep -cx d; ls m/d | grep -cx f; in_process "$SAPWOOD" untar -q a.tar m/e; ls m/e | grep -cx d
        in_process "$SAPWOOD" cp -qa t/d m/e/again; ls m/e | grep -cx again; done_with"#,
    ),
    (
        "a_copy_in_a_mount_is_what_cp_makes",
        r#"mkdir -p t/d/empty t/shut ref; head -c 3000000 /dev/urandom > t/d/big; echo x > t/d/f; touch t/nothing; chown 7:8 t/d/f
        ln t/d/f t/hard; ln -s d/f t/soft; ln -P t/soft t/soft2; mkfifo t/pipe; mknod t/null c 1 3; chmod 4711 t/d/big; truncate -s 900000 t/hole
        setfattr -n user.k -v v t/d/f; setfattr -n trusted.k -v w t/d; setfacl -m u:5:r t/d/f; setfacl -d -m g:6:rx t/d; echo y > t/shut/f; chmod 555 t/shut; touch -d @1700000001.5 t/d/f t/d
        cp -a t ref; listing ref > expected; for sandbox in on off; do image -f a.img; mounted sandbox=$sandbox
        in_process "$SAPWOOD" cp -qa t m; listing m > found; diff expected found; setfacl -k m/t/d; touch -ad @1700000009 t/d/f; in_process "$SAPWOOD" cp -qa t m; [ $(stat -c %X m/t/d/f) = 1700000009 ]; listing m > found; diff expected found
        for f in d/big d/f hard hole shut/f; do cmp t/$f m/t/$f; done; [ $(stat -c %b m/t/hole) = 0 ];
        in_process "$SAPWOOD" cp -qa t m/new; listing t > a; listing m/new | diff a -; mkdir m/into; in_process "$SAPWOOD" cp -qa t/. m/into; listing m/into | diff a -
        mkdir -p m/o/t; mkdir m/o/t/nothing; echo z > m/o/t/d; fails 1 'm/o/t/d: ' cp -qa t/d m/o/t || true; code=0; in_process "$SAPWOOD" cp -qa t m/o 2> err.txt || code=$?; [ $code = 1 ]
        [ $(wc -l < err.txt) = 3 ]; grep -q 'm/o/t/d: ' err.txt; grep -q 'm/o/t/nothing: Is a directory' err.txt; grep -q 'm/o/t/hard: No such' err.txt; [ "$(cat m/o/t/d)" = z ]; cmp m/o/t/shut/f t/shut/f
        "$SAPWOOD" cp -av t m/said | grep -c 't/d/f -> m/said/d/f'; "$SAPWOOD" cp -qa m/t m/again; listing m/again | diff a -; done_with; done"#,
    ),
    (
        "what_the_kernel_has_cached_is_what_an_archive_made",
        r#"image a.img; mounted rw; mkdir m/d; echo old > m/f; cat m/f; exec 5< m/f; cd t; echo new > f; mkdir d; echo x > d/g; tar cf ../a.tar f d; cd ..
        for round in 1 2; do ! stat m/d/g m/e 2> /dev/null; before=$(stat -c %y m); [ $(stat -c %h m/f) = 1 ]
        "$SAPWOOD" untar -q a.tar m; [ $(cat m/d/g) = x ]; [ $(cat m/f) = new ]; [ "$(stat -c %y m)" != "$before" ]; [ $(ls m/d) = g ]
        rm m/d/g; not stat m/d/g 2> /dev/null; done; (cd m/d; "$SAPWOOD" untar -q ../../a.tar .; [ "$(pwd -P)" = "$(cd ..; pwd -P)/d" ])
        read line <&5; [ $line = old ]; exec 5<&-; done_with"#,
    ),
    (
        "a_user_gets_from_an_archive_what_system_calls_give",
        r#"mkdir t/d; echo x > t/d/f; chmod 6755 t/d/f; chown 7:8 t/d/f; mknod t/d/null c 1 3; setfattr -n trusted.k -v w t/d/f; chmod 777 t/d; (cd t; tar --xattrs --xattrs-include='*' -cf ../a.tar d)
        chmod 644 a.tar; for sandbox in on off; do image -f a.img; mounted allow_other,sandbox=$sandbox; mkdir m/shut m/open m/group m/tmp; chmod 777 m/open; chmod 1777 m/tmp; chgrp 4242 m/group; chmod 770 m/group
        code=0; in_process user "$SAPWOOD" untar -q a.tar m/shut 2> err.txt || code=$?; [ $code = 1 ]; grep -q 'm/shut/d.*: Permission denied' err.txt; [ -z "$(ls m/shut)" ]
        code=0; in_process user "$SAPWOOD" untar -q a.tar m/open 2> err.txt || code=$?; [ $code = 1 ]; [ $(wc -l < err.txt) = 2 ]; grep -q 'm/open/d/null: Operation not permitted' err.txt
        [ "$(stat -c '%a %u %g' m/open/d/f)" = '755 1234 1235' ]; [ "$(stat -c '%a %u' m/open/d)" = '755 1234' ]; [ ! -e m/open/d/null ]; [ -z "$(getfattr -d -m trusted m/open/d/f)" ]
        in_process user "$SAPWOOD" untar -q a.tar m/group 2> err.txt && exit 1; [ ! -e m/group/d ] || exit 1
        in_process setpriv --reuid 1234 --regid 1235 --groups 4242 "$SAPWOOD" untar -q a.tar m/group 2> err.txt && exit 1; [ $(cat m/group/d/f) = x ]
        mkdir m/tmp/d; echo mine > m/tmp/d/f; chmod 1777 m/tmp/d; in_process user "$SAPWOOD" untar -q a.tar m/tmp 2> err.txt && exit 1; [ $(cat m/tmp/d/f) = mine ]; [ $(stat -c %u:%a m/tmp/d) = 0:1777 ]
        mkdir -m 700 m/own; chown 1234 m/own; in_process setpriv --bounding-set=-all --inh-caps=-all "$SAPWOOD" untar -q a.tar m/own 2> err.txt && exit 1; [ -z "$(ls m/own)" ]
        setfacl -m u:1234:rwx m/shut; in_process user "$SAPWOOD" untar -q a.tar m/shut 2> err.txt && exit 1; [ $(cat m/shut/d/f) = x ]; done_with; done"#,
    ),
    (
        "a_directory_gives_a_users_files_what_it_gives_those_of_tar",
        r#"mkdir -p t/d/e; echo x > t/d/f; echo y > t/d/e/g; chmod 640 t/d/f; chmod 750 t/d/e; tar cf a.tar -C t d; chmod 644 a.tar; image a.img; mounted allow_other
        for one in tar sapwood; do mkdir -p m/$one/setgid m/$one/acl; chgrp 4242 m/$one/setgid; chmod 2777 m/$one/setgid; chmod 777 m/$one/acl; setfacl -d -m u:5:rwx,g:6:rx,o:- m/$one/acl; done
        for dir in setgid acl; do user tar -xf a.tar -C m/tar/$dir; in_process user "$SAPWOOD" untar -q a.tar m/sapwood/$dir; done
        for one in tar sapwood; do (cd m/$one; getfacl -R . ; find . -type f -printf '%P %m %U %G %T@\n' | sort) > $one.txt; done; diff tar.txt sapwood.txt; done_with"#,
    ),
    (
        "a_users_copy_reads_and_keeps_what_the_user_may",
        r#"mkdir -p t/d; echo x > t/d/f; chown 7:8 t/d/f; chmod 6755 t/d/f; echo s > t/d/secret; chmod 600 t/d/secret; echo z > t/d/z; chown 1234:1235 t/d/z; chmod 4750 t/d/z; chmod 777 . t
        echo g > t/d/g; chown 1234:4242 t/d/g; mkdir -m 700 t/d/closed; chown -h 1234:1235 t t/d; image a.img; mounted allow_other; mkdir -m 777 m/o ref; chmod 777 m/o ref
        as() { setpriv --reuid 1234 --regid 1235 --groups 4242 "$@"; }; as cp -a t ref 2> err.ref && exit 1; code=0; in_process as "$SAPWOOD" cp -qa t m/o 2> err.txt || code=$?; [ $code = 1 ]
        [ $(wc -l < err.txt) = 2 ]; grep -q '^sapwood: t/d/secret: ' err.txt; grep -q '^sapwood: t/d/closed: ' err.txt; listing ref > expected; listing m/o | diff expected -
        mkdir m/o/t/d/mine; chown 0 m/o/t/d; chmod 755 m/o/t/d; code=0; in_process as "$SAPWOOD" cp -qa t m/o 2> err.txt || code=$?; [ $code = 1 ]; grep -q 'm/o/t/d/f: Permission denied' err.txt; done_with"#,
    ),
    (
        "a_client_that_ends_leaves_whole_files",
        r#"mkdir t/d; for n in $(seq 60); do head -c ${n}0000 /dev/urandom > t/d/$n; done; tar cf a.tar t; image a.img; mounted rw; mkfifo p
        for signal in KILL TERM; do "$SAPWOOD" untar -q - m < p & client=$!; exec 5> p; head -c 9000000 a.tar >&5
        until [ $({ ls m/t/d 2> /dev/null || true; } | wc -l) -gt 5 ]; do sleep 0.1; done; kill -$signal $client; wait $client && exit 1; exec 5>&-
        until "$SAPWOOD" umount m; do sleep 0.1; done; mounted rw; [ $(ls m/t/d | wc -l) -lt 60 ]; for f in m/t/d/*; do cmp $f t/d/${f##*/}; done; rm -r m/t; done
        head -c 9000000 a.tar > cut.tar; fails 1 'cut.tar: t/d/.*ends within' untar -q cut.tar m; for f in m/t/d/*; do cmp $f t/d/${f##*/}; done
        "$SAPWOOD" untar -q a.tar m; diff -r t m/t; done_with"#,
    ),
    (
        "a_daemon_that_ends_ends_the_work_of_its_clients",
        r#"mkdir t/d; for n in $(seq 60); do head -c ${n}0000 /dev/urandom > t/d/$n; done; tar cf a.tar t; image a.img; mkdir m; mkfifo p
        "$SAPWOOD" mount -q --foreground a.img m & daemon=$!; until mountpoint -q m; do sleep 0.1; done
        "$SAPWOOD" untar -q - m < p 2> err.txt & client=$!; exec 5> p; head -c 9000000 a.tar >&5
        until [ $({ ls m/t/d 2> /dev/null || true; } | wc -l) -gt 5 ]; do sleep 0.1; done; kill -KILL $daemon; code=0; wait $client || code=$?; exec 5>&-
        [ $code = 1 ]; grep -q 'm: the daemon of the mount ended' err.txt; wait $daemon || true; umount -l m; mounted rw; "$SAPWOOD" untar -q a.tar m; diff -r t m/t; done_with"#,
    ),
    (
        "an_archive_that_a_mount_refuses_is_refused_by_name",
        r#"echo x > t/f; tar cf a.tar t; image a.img; mounted ro
        fails 1 '[Rr]ead-only' untar -q a.tar m; done_with; mounted rw; fails 1 'm/none' untar -q a.tar m/none; echo x > m/f; fails 1 'm/f: not a directory' untar -q a.tar m/f
        mkdir b; mount --bind m b; mount -o remount,bind,ro b; fails 1 '[Rr]ead-only' untar -q a.tar b; fails 1 '[Rr]ead-only' cp -qa t b; umount b; [ ! -e m/t ]; rmdir b
        fails 2 'subvolume' untar --subvol s a.tar m; fails 2 'is an image' untar a.tar a.img; mkdir t/big; for n in $(seq 200); do head -c 1000000 /dev/urandom > t/big/$n; done; tar cf big.tar t
        fails 1 'm/t/big/[0-9]*: No space' untar -q big.tar m; for f in m/t/big/*; do cmp $f t/big/${f##*/}; done; rm -r m/t/big
        fails 1 'm/t/big/[0-9]*: No space' cp -qa t m; for f in m/t/big/*; do cmp $f t/big/${f##*/}; done; rm -r m/t/big; "$SAPWOOD" untar -q a.tar m
        ln -s /etc m/link; mkdir l; echo evil > l/evil; tar cf l.tar --transform s/^l/link/ l/evil; fails 1 'symbolic link' untar -q l.tar m; [ $(cat m/t/f) = x ]; done_with"#,
    ),
    (
        "without_the_daemon_system_calls_make_the_same",
        r#"mkdir -p t/d/empty t/shut ref dir; echo x > t/d/f; chown 7:8 t/d/f; ln t/d/f t/hard; ln -s d/f t/soft; mkfifo t/pipe; chmod 4711 t/d/f; truncate -s 900000 t/hole
        setfattr -n user.k -v v t/d/f; echo y > t/shut/f; chmod 555 t/shut; chmod 2770 t/d; tar --format=pax --xattrs --xattrs-include='*' -cf a.tar t; tar --xattrs --xattrs-include='*' -xpf a.tar -C ref
        listing ref > expected; for round in 1 2; do "$SAPWOOD" untar -q a.tar dir; listing dir | diff expected -; done; cmp dir/t/hole t/hole
        image a.img; mounted allow_other; by_requests unshare -n "$SAPWOOD" untar -q a.tar m; listing m | diff expected -; rm -r m/t; by_requests unshare -n "$SAPWOOD" cp -qa t m; listing t > a; listing m/t | diff a -; rm -r m/t
        by_requests unshare -r "$SAPWOOD" untar -q a.tar m 2> err.txt || true; [ $(cat m/t/shut/f) = y ]; rm -r m/t; done_with
        chmod 644 a.tar; chmod 755 .; mkdir -m 777 u1 u2; chmod 777 u1 u2; user tar -xf a.tar -C u1; user "$SAPWOOD" untar -q a.tar u2; listing u1 > a; listing u2 | grep -v '^# file\|user.k' | diff a -
        mkdir s; ln -s "$PWD/outside" s/t; mkdir outside; tar cf l.tar -C t d/f --transform s/^d/t/; fails 1 'symbolic link' untar -q l.tar s; [ -z "$(ls outside)" ]
        head -c 3000 a.tar > cut.tar; fails 1 'cut.tar: ' untar -q cut.tar dir; fails 1 'none' untar -q a.tar none"#,
    ),
    (
        "a_copy_has_the_acls_of_its_source_alone",
        r#"gives() { mkdir -p "$1"; setfacl -d -m u:8:rwx,g:9:rwx,o:rx "$1"; }; spoil() { for f in none none/f none/e none/e/g none/p some some/f; do setfacl -m u:8:rwx "$1/$f"; done; setfacl -d -m u:8:rwx "$1/none"; }
        mkdir -p t/none/e t/some/e; echo x > t/none/f; echo y > t/none/e/g; mkfifo t/none/p; mknod t/none/c c 1 3; chown 7:8 t/none/f; chmod 4750 t/none/f; echo z > t/some/f; setfacl -m u:5:r t/some/f; setfacl -m u:7:rwx t/some; setfacl -d -m g:6:rx t/some/e
        gives ref; cp -a t ref; listing t > expected; listing ref/t | diff expected -; cp -p t/none/f ref/f; cp -p t/some/f ref/some; kept() { (cd $1; getfacl -n f some; stat -c %a:%u:%g f some); }; kept ref > kept
        copied() { local how=$1 to=$2; gives $to; $how "$SAPWOOD" cp -qa t $to; listing $to/t | diff expected -; spoil $to/t; $how "$SAPWOOD" cp -qa t $to; listing $to/t | diff expected -
        "$SAPWOOD" cp -qp t/none/f $to/f; "$SAPWOOD" cp -qp t/some/f $to/some; kept $to | diff kept -; setfacl -m u:8:rwx $to/f; "$SAPWOOD" cp -qp t/none/f $to/f; kept $to | diff kept -; }; offline() { unshare -n "$@"; }
        for sandbox in on off; do image -f a.img; mounted sandbox=$sandbox; copied in_process m/in; copied 'by_requests offline' m/in2; gives m/in3; "$SAPWOOD" cp -qa m/in/t m/in3; listing m/in3/t | diff expected -; gives m/in4; done_with; done
        copied env out; gives out2; "$SAPWOOD" cp -qa a.img:in/t out2; listing out2/t | diff expected -; "$SAPWOOD" cp -qa t a.img:in4; "$SAPWOOD" cp -qa a.img:in/t a.img:in4/again
        "$SAPWOOD" cp -qp t/none/f a.img:in4/f; "$SAPWOOD" cp -qp t/some/f a.img:in4/some; mounted rw; listing m/in4/t | diff expected -; listing m/in4/again | diff expected -; kept m/in4 | diff kept -; gives m/b; done_with
        "$SAPWOOD" mkfs -q -t $KIND --size 128M -r out b.img; "$SAPWOOD" cp -qa a.img:in/t b.img:; "$SAPWOOD" cp -qa b.img:t a.img:b; mounted rw; listing m/b/t | diff expected -; done_with; tools a.img"#,
    ),
    (
        "an_entry_has_its_own_acls_or_inherits_as_with_tar",
        r#"gives() { mkdir -m 777 -p "$1"; setfacl -d -m u:50008:rwx,g:50009:rwx,o:rx "$1"; chmod 777 "$1"; }
        mkdir -p t/some/e t/none/e; echo x > t/none/f; chmod 664 t/none/f; echo y > t/none/e/g; echo z > t/some/f; chmod 664 t/some/f; setfacl -m u:50005:rw,g::r t/some/f; setfacl -m u:50007:rwx t/some t/some/e; setfacl -d -m g:50006:rx t/some/e
        tar --format=pax --acls -cf some.tar -C t some; tar -cf none.tar -C t none; chmod 644 some.tar none.tar; chmod 755 .; both() { gives $2; $1 some.tar $2; $1 none.tar $2; (cd $2; find some none | sort | xargs getfacl -n; listing .) > ${2##*/}.txt; }
        tar_() { tar --acls -xpf $1 -C $2; }; plain() { case $1 in some*) tar_ "$@";; *) tar -xpf $1 -C $2;; esac; }; bulk() { in_process "$SAPWOOD" untar -q "$@"; }; requests() { by_requests unshare -n "$SAPWOOD" untar -q "$@"; }; here() { "$SAPWOOD" untar -q "$@"; }
        both plain ref; grep -c 'user:50008:' ref.txt; not grep -q '^user:50008:' <(getfacl -R -n ref/some); both here dir; diff ref.txt dir.txt
        as_tar() { case $1 in some*) user tar --acls -xf $1 -C $2;; *) user tar -xf $1 -C $2;; esac; }; as_bulk() { in_process user "$SAPWOOD" untar -q "$@"; }; as_here() { user "$SAPWOOD" untar -q "$@"; }; both as_tar uref; both as_here udir; diff uref.txt udir.txt
        for sandbox in on off; do image -f a.img; mounted allow_other,sandbox=$sandbox; both bulk m/in; diff ref.txt in.txt; both requests m/req; diff ref.txt req.txt; both as_bulk m/uin; diff uref.txt uin.txt; gives m/off; done_with; done
        "$SAPWOOD" untar -q some.tar a.img:off; "$SAPWOOD" untar -q none.tar a.img:off; mounted rw; both true m/off; diff ref.txt off.txt; done_with; tools a.img"#,
    ),
    (
        "a_process_that_gives_files_away_fills_their_directories",
        r#"mkdir -p t/d/e/s; echo x > t/d/f; echo y > t/d/e/g; chown 7:8 t/d t/d/f t/d/e/g t/d/e/s; chmod 4755 t/d/f; chmod 500 t/d/e/s; chown 1234 t/d/e/s; setfattr -n user.k -v v t/d/f t/d/e; chmod 755 . t
        giver() { setpriv --reuid 1234 --regid 1235 --clear-groups --inh-caps=-all,+chown --ambient-caps=-all,+chown "$@"; }; changer() { setpriv --reuid 1234 --regid 1235 --clear-groups --inh-caps=-all,+chown,+fowner --ambient-caps=-all,+chown,+fowner "$@"; }
        loser() { setpriv --bounding-set=-fowner --inh-caps=-fowner "$@"; }; image a.img; mounted allow_other
        for as in giver changer loser; do mkdir -m 777 ref-$as m/$as m/t-$as; code=0; $as cp -a t ref-$as 2> err.ref || code=$?; found=0; in_process $as "$SAPWOOD" cp -qa t m/$as 2> err.txt || found=$?; [ $found = $code ] || { cat err.ref err.txt; exit 1; }
        [ $(wc -l < err.ref) = $(wc -l < err.txt) ] || { cat err.ref err.txt; exit 1; }; listing ref-$as > expected; listing m/$as | diff expected -; cmp t/d/e/g m/$as/t/d/e/g
        mkdir -m 777 out-$as; found=0; $as "$SAPWOOD" cp -qa t out-$as 2> err.txt || found=$?; [ $found = $code ]; listing out-$as | diff expected -; done; done_with; "$SAPWOOD" check -q a.img; tools a.img"#,
    ),
];
