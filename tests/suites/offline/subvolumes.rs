//! The meaning of a path in an image with a default subvolume. Each test is a script.

/// Each follows the prelude of the other scripts.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "a_path_is_in_the_default_subvolume_for_every_command",
        r#"mkdir t/@ t/other; echo inside > t/@/f; image i -r t --subvol default:@ --subvol other
        "$SAPWOOD" subvolume snapshot i:/ /before; [ "$("$SAPWOOD" cat i:/before/f)" = inside ]
        "$SAPWOOD" subvolume snapshot -r i /whole; [ "$("$SAPWOOD" cat i:/whole/f)" = inside ]; "$SAPWOOD" subvolume create i:/new
        "$SAPWOOD" subvolume list i > list; for path in @/before '@/whole (read-only)' @/new other; do grep -q " $path\$" list; done
        "$SAPWOOD" cp -q f i:/new/g; "$SAPWOOD" mkdir i:/dir; "$SAPWOOD" ls -A i: | tr '\n' ' ' | grep -qx 'before dir f new whole '
        "$SAPWOOD" subvolume set-read-only i:/new; fails 1 'read-only' rm i:/new/g; "$SAPWOOD" subvolume set-read-only --off i:/new
        fails 1 '/dir: not a subvolume' subvolume snapshot i:/dir /no; fails 1 'not a subvolume' subvolume delete i:/dir
        "$SAPWOOD" subvolume delete i:/new i:/before; [ "$("$SAPWOOD" subvolume list i | grep -c '@/')" = 1 ]; "$SAPWOOD" check -q i"#,
    ),
    (
        "options_reach_what_is_outside_of_the_default_subvolume",
        r#"mkdir t/@ t/other; echo inside > t/@/f; echo outside > t/other/g; image i -r t --subvol default:@ --subvol other
        fails 1 '/other: no such file.*--top-level reaches all' subvolume snapshot i:/other /s; fails 1 'top-level' subvolume delete i:/other
        "$SAPWOOD" subvolume snapshot --top-level i:/@ /monday; [ "$("$SAPWOOD" cat --subvol monday i:/f)" = inside ]
        "$SAPWOOD" subvolume snapshot --subvol other i:/ i:/s; [ "$("$SAPWOOD" cat --top-level i:/other/s/g)" = outside ]
        id=$("$SAPWOOD" subvolume list i | sed -n 's/^ *\([0-9]*\) .* other$/\1/p'); "$SAPWOOD" subvolume create --subvolid $id i:/deep
        "$SAPWOOD" ls --top-level i: | tr '\n' ' ' | grep -qx '@ monday other '; "$SAPWOOD" ls --top-level i:/other | tr '\n' ' ' | grep -qx 'deep g s '
        "$SAPWOOD" subvolume delete --top-level i:/other/s i:/other/deep i:/monday; fails 2 'cannot be used with' ls --top-level --subvol @ i
        KIND=ext4 image e; fails 3 'ext4' ls --top-level e; fails 3 'needs btrfs' subvolume create e:/x; "$SAPWOOD" check -q i"#,
    ),
    (
        "the_default_subvolume_is_set_by_path_or_id",
        r#"mkdir -p t/@ t/a/b; image i -r t --subvol default:@ --subvol a/b; is() { [ "$("$SAPWOOD" subvolume get-default i | sed 's/^ *[0-9]* *//')" = "$1" ]; }
        "$SAPWOOD" subvolume set-default i a/b; is a/b; "$SAPWOOD" subvolume set-default i /@/; is @; "$SAPWOOD" subvolume create i:/in
        "$SAPWOOD" subvolume set-default i:/in; is @/in; "$SAPWOOD" subvolume set-default --top-level i:/a/b; is a/b
        "$SAPWOOD" subvolume set-default --subvol @ i; is @; "$SAPWOOD" subvolume set-default i 5; is /; "$SAPWOOD" subvolume set-default i @; "$SAPWOOD" subvolume set-default i /; is /
        fails 1 'subvolume none: no subvolume has this id or path.*subvolume list' subvolume set-default i none; fails 1 'subvolume 999: ' subvolume set-default i 999
        fails 2 'name the subvolume:' subvolume set-default i; fails 2 'once' subvolume set-default i:/a/b 5; fails 2 'top level' subvolume set-default --subvol @ i 5
        fails 1 '/a: not a subvolume' subvolume set-default i:/a; is /; "$SAPWOOD" check -q i"#,
    ),
];

/// The same operands, on an image and on its mount, lead to the same subvolumes.
pub(crate) const MOUNT: &str = r#"
mkdir t/@; echo inside > t/@/f; mkdir m
for how in image mount; do
    image $how -r t --subvol default:@; at() { echo "image:$1"; }
    [ $how = image ] || { "$SAPWOOD" mount mount m; at() { echo "m$1"; }; }
    "$SAPWOOD" subvolume snapshot "$(at /)" "$(at /before)"; "$SAPWOOD" subvolume create "$(at /new)"
    "$SAPWOOD" subvolume snapshot -r "$(at /new)" "$(at /old)"; "$SAPWOOD" subvolume delete "$(at /new)"; "$SAPWOOD" subvolume set-default "$(at /before)"
    [ $how = image ] || "$SAPWOOD" umount m
    "$SAPWOOD" subvolume list $how | sed 's/^ *[0-9]* *in [0-9]* *generation [0-9]* *//' > $how.list; [ "$("$SAPWOOD" cat $how:/f)" = inside ]
done
diff image.list mount.list; grep -qx '@/old (read-only)' mount.list
"#;
