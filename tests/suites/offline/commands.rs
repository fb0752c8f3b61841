//! The commands that change and list files, compared with coreutils and findutils: the same options
//! on a directory of this machine and on an image have the same result. Each test is a script.

/// Each follows the prelude of the other scripts.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "ls_lists_as_coreutils_do",
        r#"mkdir -p t/d/e t/.h; head -c 3000 /dev/zero > t/big; echo x > t/.hidden; touch -d '2001-01-01' t/old; ln -s big t/link
        image a.img -r t; ls() { "$SAPWOOD" ls "$@"; }
        same() { diff <(ls "$@" a.img | grep -v lost+found) <(cd t && LC_ALL=C command ls "$@") || { echo "ls $*"; exit 1; }; }
        same -1; same -A; same -a; same -r; same -t; same -tr; [ "$(ls -S a.img | grep -E 'big|old' | tr '\n' ' ')" = 'big old ' ]
        diff <(ls -R a.img: | grep -v '^/\?lost+found') <(cd t && LC_ALL=C command ls -R | sed 's|^\.:|/:|; s|^\./|/|') || [ $KIND = ext4 ]
        ls -l a.img | grep -c '^lrwxrwxrwx .* link -> big$'; ls -lh a.img:big | grep -c ' 3\.0K '; ls -d a.img:d | grep -cx d
        [ "$(ls -i a.img:big | cut -d' ' -f1)" = "$("$SAPWOOD" stat a.img:big | grep -oP 'inode +\K\d+')" ]
        ls -la a.img | grep -c '^drwx.* \.\.$'; ls --help | grep -c Usage
        code=0; ls a.img:none a.img:big > out.txt 2> err.txt || code=$?; [ $code = 1 ]; grep -cx big out.txt; grep -c none err.txt"#,
    ),
    (
        "ls_colours_names_as_coreutils_do",
        r#"mkdir -p t/d t/st t/ow t/tw; chmod 1755 t/st; chmod 757 t/ow; chmod 1757 t/tw; for n in plain run su sg a.tar b.tar.gz; do echo x > t/$n; done
        chmod 755 t/run; chmod 4755 t/su; chmod 2755 t/sg; ln -s d t/link; ln -s none t/broken; mkfifo t/fifo; image a.img -r t; e=$(printf '\033')
        export LS_COLORS='di=01;34:ln=36:or=31:pi=33:su=35:sg=01;31:tw=01;33:ow=01;35:st=01;36:ex=01;32:*.tar=32:*.gz=34'
        ls() { "$SAPWOOD" ls "$@" | usual; }; usual() { sed "s/$e\[0m$e/$e/; s/$e\[m/$e[0m/g"; }
        diff <(ls --color=always -1 a.img | grep -v lost+found) <(cd t && LC_ALL=C command ls --color=always -1 | usual)
        diff <(ls -l --color a.img:link a.img:d -d | grep -o "$e.*") <(cd t && LC_ALL=C command ls -ld --color d link | sort -r | grep -o "$e.*" | usual | sed "s/-> .*d.*/-> d/")
        for args in '' --color=never --color=auto; do [ -z "$("$SAPWOOD" ls $args a.img | grep "$e")" ] || exit 1; done; fails 2 'sometimes' ls --color=sometimes a.img
        on_terminal() { TERM=xterm env "$@" script -qec "'$SAPWOOD' ls a.img" /dev/null < /dev/null; }
        on_terminal A=b | grep -c "$e\[01;34md"; [ -z "$(on_terminal NO_COLOR=1 | grep "$e\[")" ]; [ -z "$(on_terminal TERM=dumb | grep "$e\[")" ]"#,
    ),
    (
        "patterns_lead_to_names_in_an_image",
        r#"mkdir t/etc; for n in a.conf b.conf .c.conf 'x*y' xzy; do echo $n > "t/etc/$n"; done; image a.img -r t
        [ "$("$SAPWOOD" ls 'a.img:/etc/*.conf' | tr '\n' ' ')" = '/etc/a.conf /etc/b.conf ' ] || [ "$("$SAPWOOD" ls 'a.img:/etc/*.conf' | tr '\n' ' ')" = 'etc/a.conf etc/b.conf ' ]
        [ "$("$SAPWOOD" cat 'a.img:/etc/x*y')" = 'x*y' ]; [ $("$SAPWOOD" cat 'a.img:/et?/x[z]y') = xzy ]
        mkdir out; "$SAPWOOD" cp -q 'a.img:/etc/*.conf' out; [ "$(ls out | tr '\n' ' ')" = 'a.conf b.conf ' ]
        "$SAPWOOD" mkdir a.img:d; "$SAPWOOD" mv -v 'a.img:/etc/?.conf' /d > out.txt; grep -cx 'renamed /etc/a.conf -> /d/a.conf' out.txt
        "$SAPWOOD" rm -v 'a.img:d/*'; [ -z "$("$SAPWOOD" ls a.img:d)" ]; "$SAPWOOD" rm -f 'a.img:d/*.none'
        fails 1 '/d/\*.none: no such file' rm 'a.img:d/*.none'; fails 1 'not a directory' mv 'a.img:/etc/x*' a.img:/etc/.c.conf; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "find_finds_as_findutils_do",
        r#"mkdir -p t/a/b t/empty; head -c 5000 /dev/zero > t/a/five; echo x > t/a/b/One.TXT; touch t/none; chmod 4755 t/a/five; chmod 600 t/none
        touch -d '40 days ago' t/a/b/One.TXT; ln t/a/five t/second; ln -s a t/l; chown 7:8 t/none; mkdir t/etc; echo 'ann:x:7:8::/:' > t/etc/passwd; chmod 750 t/a/b
        image a.img -r t; found() { "$SAPWOOD" find "$@" | grep -v lost+found | sort; }
        same() { diff <(found a.img: "$@") <(cd t && command find . "$@" | sed 's|^\./|/|; s|^\.$|/|' | sort) || { echo "find $*"; exit 1; }; }
        same; same -name '*e'; same -iname 'one.*'; same -type f; same -type d,l; same -type f -size +4k; same -type f -size -2; same -size 5000c
        same -mtime +30; same -mtime -1; same -perm 600; same -perm -4000; same -perm /u+s,o+w
        same -type f -links 2; same -type f -empty; same -type d -empty; same -maxdepth 1; same -mindepth 2 -type f; same -path '*/b/*'; same -type f -links +1 -size +1k
        [ "$(found a.img --user ann)" = /none ]; [ "$(found a.img --user 7 --group 8)" = /none ]; fails 1 'no such user' find a.img --user bob
        [ "$(found a.img --newer a/b/One.TXT --name second)" = /second ]; [ "$("$SAPWOOD" find a.img:a -name 'O*' -print0 | od -An -c | tr -d ' \n')" = '/a/b/One.TXT\0' ]
        [ "$("$SAPWOOD" find a.img:a/five)" = /a/five ]; fails 2 'not a file type' find a.img -type x; fails 2 'not a size' find a.img -size 5x"#,
    ),
    (
        "du_counts_a_file_with_two_names_once",
        r#"mkdir -p t/a/b; head -c 400000 /dev/urandom > t/a/f; ln t/a/f t/a/b/g; head -c 100000 /dev/urandom > t/h; truncate -s 50M t/hole; image a.img -r t
        kib() { "$SAPWOOD" du -s "$@" | cut -f1; }; a=$(kib a.img:a); [ $a -ge 388 ] && [ $a -le 440 ]; all=$(kib a.img); [ $all -ge $((a + 96)) ] && [ $all -lt 2000 ]
        "$SAPWOOD" du -d 1 a.img | grep -cP '^\d+\t/a$'; [ $("$SAPWOOD" du -d 1 a.img | grep -c /a/b) = 0 ] || exit 1
        "$SAPWOOD" du a.img | grep -cP '\t/a/b$'; "$SAPWOOD" du -a a.img | grep -cP '\t/h$'; "$SAPWOOD" du -sh a.img:a | grep -cP '^\d{3}K\t/a$'
        [ $("$SAPWOOD" du -s --apparent-size a.img:hole | cut -f1) = 51200 ]; [ $(kib a.img:hole) -lt 100 ]
        "$SAPWOOD" du -sc a.img:a a.img:h | grep -cP '\ttotal$'; two=$("$SAPWOOD" du -s a.img:a/f a.img:a/b/g | cut -f1 | tail -1); [ $two = 0 ]"#,
    ),
    (
        "df_shows_space_and_inodes",
        r#"image a.img; "$SAPWOOD" df a.img | grep -cP '^a\.img +'$KIND' +\d+ +\d+ +\d+ +\d+%$'; "$SAPWOOD" df -h a.img | grep -cP ' \d+M '
        "$SAPWOOD" df -i a.img | sed -n 1p | grep -c IUse; fails 1 'not in a Sapwood mount' df .; fails 3 'mkfs' df none.img"#,
    ),
    (
        "links_are_made",
        r#"mkdir t/d; echo x > t/f; image a.img -r t; "$SAPWOOD" ln a.img:f /g; "$SAPWOOD" ln a.img:f d; "$SAPWOOD" stat a.img:g | grep -c ' 3 links'
        "$SAPWOOD" ln -s ../f a.img:d/s; [ $("$SAPWOOD" cat a.img:d/s) = x ]; "$SAPWOOD" ln -sv /any/where a.img:d | grep -cx '/d/where -> /any/where'
        fails 1 '-f replaces it' ln -s x a.img:f; "$SAPWOOD" ln -sf x a.img:f; "$SAPWOOD" stat a.img:f | grep -c 'target  x'
        fails 1 'no hard links' ln a.img:d e; fails 1 'no such file' ln a.img:none e; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "modes_and_owners_change_as_with_coreutils",
        r#"mkdir -p t/d/e t/etc; echo x > t/d/f; echo x > t/d/e/g; ln -s f t/d/l; echo 'web:x:33:34::/:' > t/etc/passwd; echo 'www:x:35:' > t/etc/group; image a.img -r t
        mode() { "$SAPWOOD" stat "a.img:$1" | grep -oP 'mode +\K\d+'; }
        for m in 600 u+x g=u a+X,o-r -x 4755 u=rwx,go= +t; do "$SAPWOOD" chmod $m a.img:d/f; chmod $m t/d/f; [ $(mode d/f) = 0$(stat -c %a t/d/f | sed 's/^\(...\)$/\1/' ) ] || [ $(mode d/f) = $(stat -c %a t/d/f) ]; done
        "$SAPWOOD" chmod -R u+rwX,go-rwx a.img:d; chmod -R u+rwX,go-rwx t/d; for n in d d/e d/e/g d/f; do [ $(mode $n | tail -c4) = $(stat -c %a t/$n | tail -c4) ]; done
        "$SAPWOOD" chmod -v 640 a.img:d/l | grep -c -- '-> 0640'; [ $(mode d/f) = 0640 ]
        "$SAPWOOD" chown web:www a.img:d/f; owner a.img:d/f 33 35; "$SAPWOOD" chown :7 a.img:d/f; owner a.img:d/f 33 7; "$SAPWOOD" chown -h 5 a.img:d/l; owner a.img:d/l 5 0; owner a.img:d/f 33 7
        "$SAPWOOD" chown 6 a.img:d/l; owner a.img:d/f 6 7; "$SAPWOOD" chown -R 1:2 a.img:d; for n in d d/e d/e/g d/f d/l; do owner a.img:$n 1 2; done
        fails 1 'no such user' chown nobody-here a.img:d; fails 2 'not a mode' chmod u+q a.img:d; fails 1 'no such file' chmod 644 a.img:none; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "times_and_sizes_are_set",
        r#"image a.img; export TZ=UTC; "$SAPWOOD" touch -d '2025-07-01 12:00' a.img:f; "$SAPWOOD" stat a.img:f | grep -c 'modify  2025-07-01 12:00:00.000000000'
        "$SAPWOOD" touch -r f a.img:g; "$SAPWOOD" stat a.img:g | grep -c 'access  2025-07-01'; "$SAPWOOD" touch -m -d @86400.5 a.img:g; "$SAPWOOD" stat a.img:g | grep -c 'access  2025'
        "$SAPWOOD" stat a.img:g | grep -c 'modify  1970-01-02 00:00:00.500000000'; "$SAPWOOD" touch -c a.img:none; [ -z "$("$SAPWOOD" ls a.img | grep none)" ]
        "$SAPWOOD" touch a.img:f; "$SAPWOOD" stat a.img:f | grep -c "modify  $(date +%Y)"; fails 2 'not a time' touch -d tomorrow a.img:f; fails 1 'no such file' touch a.img:no/f
        size() { "$SAPWOOD" stat a.img:h | grep -oP 'size +\K\d+'; }; "$SAPWOOD" truncate -s 3M a.img:h; [ $(size) = 3145728 ]; "$SAPWOOD" truncate -s -1k a.img:h; [ $(size) = 3144704 ]
        "$SAPWOOD" truncate -s +5 a.img:h; [ $(size) = 3144709 ]; "$SAPWOOD" truncate -c -s 1 a.img:none; fails 2 'not a size' truncate -s x a.img:h; owner a.img:h 0 0; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "attributes_have_text_hex_and_base64",
        r#"image a.img; "$SAPWOOD" touch a.img:f; x() { "$SAPWOOD" xattr "$@"; }; x set user.a hello a.img:f; x set user.b 0x00ff a.img:f; [ "$(x get user.a a.img:f)" = hello ]
        [ "$(x get -e hex user.b a.img:f)" = 0x00ff ]; [ "$(x get -e base64 user.b a.img:f)" = 0sAP8= ]; [ "$(x get user.b a.img:f)" = '\0\xff' ] || [ "$(x get user.b a.img:f)" = '\u{0}\xff' ]
        x get -e raw user.b a.img:f | od -An -tx1 | grep -cx ' 00 ff'; [ "$(x list a.img:f | tr '\n' ' ')" = 'user.a user.b ' ]; x list -v a.img:f | grep -cx 'user.a = hello'
        "$SAPWOOD" ln -s f a.img:l; [ "$(x get user.a a.img:l)" = hello ]; x remove user.a a.img:f; fails 1 'no attribute user.a' xattr get user.a a.img:f
        fails 1 'no attribute' xattr remove user.a a.img:f; fails 1 'a name begins with' xattr set nonsense x a.img:f; fails 2 'no hexadecimal' xattr set user.c 0xz a.img:f; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "standard_input_becomes_a_file",
        r#"image a.img; echo one | "$SAPWOOD" write a.img:f; echo two | "$SAPWOOD" write -a a.img:f; [ "$("$SAPWOOD" cat a.img:f | tr '\n' ' ')" = 'one two ' ]
        "$SAPWOOD" chmod 600 a.img:f; echo three | "$SAPWOOD" write a.img:f; [ $("$SAPWOOD" cat a.img:f) = three ]; "$SAPWOOD" ls -l a.img:f | grep -c '^-rw-------'
        head -c 3000000 /dev/urandom > r; "$SAPWOOD" write --owner 7:8 a.img:r < r; "$SAPWOOD" cat a.img:r | cmp - r; owner a.img:r 7 8
        fails 2 'a.img:/PATH' write a.img < f; "$SAPWOOD" mkdir a.img:d; fails 1 'is a directory' write a.img:d < f; fails 1 'no such file' write a.img:no/f < f"#,
    ),
    (
        "an_editor_changes_a_file_at_once",
        r#"echo old > t/f; chmod 640 t/f; chown 7:8 t/f; setfattr -n user.k -v v t/f 2> err.txt || true; image a.img -r t; "$SAPWOOD" xattr set user.k v a.img:f
        ino() { "$SAPWOOD" ls -i a.img:f | cut -d' ' -f1; }; first=$(ino); EDITOR=true "$SAPWOOD" edit a.img:f; [ $(ino) = $first ]
        EDITOR='sed -i s/old/new/' "$SAPWOOD" edit a.img:f; [ $("$SAPWOOD" cat a.img:f) = new ]; owner a.img:f 7 8; "$SAPWOOD" ls -l a.img:f | grep -c '^-rw-r-----'; [ $("$SAPWOOD" xattr get user.k a.img:f) = v ]
        VISUAL='sh -c "echo visual > \$1" x' EDITOR=false "$SAPWOOD" edit a.img:f; [ $("$SAPWOOD" cat a.img:f) = visual ]
        code=0; EDITOR=false "$SAPWOOD" edit a.img:f 2> err.txt || code=$?; [ $code = 1 ]; grep -c 'the image is unchanged' err.txt; [ $("$SAPWOOD" cat a.img:f) = visual ]
        "$SAPWOOD" edit -e 'cp f' a.img:made; [ $("$SAPWOOD" cat a.img:made) = text ]; [ "$("$SAPWOOD" ls -A a.img | grep -v lost | tr '\n' ' ')" = 'f made ' ]
        fails 1 'cannot be edited' edit a.img:.; fails 2 '/PATH' edit a.img; fails 1 'no such file' edit a.img:no/f; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "options_of_cp_and_mkdir_are_those_of_coreutils",
        r#"image a.img; chmod 640 f; touch -d 2001-01-01 f; "$SAPWOOD" cp -p f a.img:; "$SAPWOOD" stat a.img:f | grep -c 'modify  2001'; "$SAPWOOD" stat a.img:f | grep -c 'mode    0640'
        echo new > g; "$SAPWOOD" cp -n g a.img:f; [ $("$SAPWOOD" cat a.img:f) = text ]; "$SAPWOOD" cp -u g a.img:f; [ $("$SAPWOOD" cat a.img:f) = new ]; "$SAPWOOD" cp -u f a.img:f; [ $("$SAPWOOD" cat a.img:f) = new ]
        mkdir -p t/d; echo x > t/d/h; "$SAPWOOD" cp -rv t a.img: | grep -cx 't/d/h -> a.img:/t/d/h'; "$SAPWOOD" cp -R t a.img:u; "$SAPWOOD" rm -R a.img:u
        "$SAPWOOD" mkdir -vp -m 2750 a.img:x/y | grep -cx 'created /x/y'; "$SAPWOOD" stat a.img:x/y | grep -c 'mode    2750'; "$SAPWOOD" stat a.img:x | grep -c 'mode    0755'
        fails 1 '-p makes missing' mkdir a.img:no/such; "$SAPWOOD" rm -rv a.img:t | sort | tr '\n' ' ' | grep -cx 'removed /t removed /t/d removed /t/d/h '; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "an_interrupted_command_leaves_a_consistent_image",
        r#"image a.img; mkfifo p; exec 9<> p; "$SAPWOOD" write a.img:f < p 2> err.txt & pid=$!
        # It returns when all but what a pipe holds is read.
        head -c 300000 /dev/zero >&9; kill -INT $pid; code=0; wait $pid || code=$?; [ $code = 130 ]
        size=$("$SAPWOOD" ls -l a.img:f | cut -d' ' -f5); [ $size -gt 200000 ]; grep -c "interrupted: $size bytes written to /f" err.txt; "$SAPWOOD" check -q a.img
        opened() { until ls -l /proc/$pid/fd 2> out.txt | grep -q a.img; do kill -0 $pid 2> out.txt || break; done; }
        mkdir t/many; for n in $(seq 4000); do echo $n > t/many/$n; done
        # It may end before the signal comes: then it is tried again.
        for try in $(seq 20); do "$SAPWOOD" cp -r t a.img:c$try 2> err.txt & pid=$!; opened; kill -INT $pid 2> out.txt || true; code=0; wait $pid || code=$?; [ $code = 0 ] || break; done
        [ $code = 130 ]; grep -c 'interrupted: .* files copied' err.txt; "$SAPWOOD" check -q a.img"#,
    ),
    (
        "progress_is_for_terminals",
        r#"head -c 30M /dev/zero > t/z; image a.img; [ -z "$("$SAPWOOD" cp -r t a.img: 2>&1)" ]; script -qec "$SAPWOOD cp -r t a.img:two" log > out.txt; grep -aq copied log
        script -qec "$SAPWOOD check a.img" log > out.txt; grep -aq checking log; [ "$("$SAPWOOD" check a.img 2>&1)" = clean ]; script -qec "$SAPWOOD cp -qr t a.img:three" log > out.txt; ! grep -aq copied log
        script -qec "stty cols 40; $SAPWOOD ls a.img:two a.img:two" log > out.txt; grep -ac '^/two:' log"#,
    ),
    (
        "paths_that_no_system_call_takes_are_printed_on_request",
        r#"image a.img; name=$(printf 'n%.0s' $(seq 200)); path=; for i in $(seq 30); do path=$path/$name; done
        # 20 of the paths have at most 4,020 bytes.
        "$SAPWOOD" mkdir -p "a.img:$path"; paths() { grep -c nnn "$1"; }
        for command in find du tree 'find --print0'; do
            fails 1 '10 paths of more than 4095 bytes' $command a.img:/; tr '\0' '\n' < out.txt > lines.txt; [ $(paths lines.txt) = 20 ]
            "$SAPWOOD" $command --long-paths a.img:/ | tr '\0' '\n' > lines.txt; [ $(paths lines.txt) = 30 ]
        done
        grep -qx "$path" <("$SAPWOOD" find --long-paths a.img:/); [ "$("$SAPWOOD" find --empty --long-paths --name 'n*' a.img:/)" = "$path" ]
        [ -z "$("$SAPWOOD" find --name none a.img:/)" ]; [ $("$SAPWOOD" find --maxdepth 20 a.img:/ | paths -) = 20 ]
        fails 1 '10 paths' du a.img:/; sum=$(tail -n 1 out.txt); [ "$("$SAPWOOD" du -s a.img:/)" = "$sum" ]
        [ "$("$SAPWOOD" du --long-paths a.img:/ | tail -n 1)" = "$sum" ]; fails 1 '10 paths' tree a.img:/; grep -q '3[01] directories' out.txt
        fails 1 '1 path of more' ls -R a.img:/; "$SAPWOOD" ls -R --long-paths a.img:/ > lines.txt
        [ "$("$SAPWOOD" find --json --long-paths a.img:/ | paths -)" = 30 ]"#,
    ),
];
