//! Examples of each command, for its help and its man page.

/// A command line and its effect.
pub(crate) type Example = (&'static str, &'static str);

/// Examples by command; a subcommand follows its command after a space.
pub(super) const EXAMPLES: &[(&str, &[Example])] = &[
    ("mkfs", crate::mkfs::EXAMPLES),
    (
        "untar",
        &[
            (
                "sapwood untar root.tar.zst disk.img:",
                "an archive into the root of an image",
            ),
            (
                "sapwood untar - disk.img:/srv < files.tar",
                "an archive from standard input",
            ),
            (
                "sapwood untar linux.tar.xz mnt/src",
                "into a mounted image, by its daemon",
            ),
        ],
    ),
    ("mkdisk", crate::mkdisk::EXAMPLES),
    ("export", crate::export::EXAMPLES),
    ("diff", crate::diff::EXAMPLES),
    ("send", crate::send::EXAMPLES),
    ("receive", crate::receive::EXAMPLES),
    (
        "ls",
        &[
            (
                "sapwood ls -la disk.img:/etc",
                "long form, with hidden names",
            ),
            (
                "sapwood ls 'disk.img:/etc/*.conf'",
                "a pattern; the quotes keep it from the shell",
            ),
            ("sapwood ls -lhSr disk.img:/var/log", "the largest last"),
        ],
    ),
    (
        "cat",
        &[("sapwood cat disk.img:/etc/fstab", "print a file")],
    ),
    (
        "stat",
        &[(
            "sapwood stat disk.img:/etc/passwd",
            "everything about a file",
        )],
    ),
    (
        "tree",
        &[(
            "sapwood tree disk.img:/home",
            "everything below a directory",
        )],
    ),
    ("find", crate::find::EXAMPLES),
    (
        "du",
        &[
            (
                "sapwood du -h -d 1 disk.img",
                "the size of each top directory",
            ),
            ("sapwood du -sh 'disk.img:/home/*'", "each home directory"),
        ],
    ),
    (
        "df",
        &[
            ("sapwood df -h disk.img", "used and free space of an image"),
            (
                "sapwood df -i disk.img mnt",
                "inodes of an image and of a mount",
            ),
        ],
    ),
    (
        "info",
        &[
            ("sapwood info disk.img", "format, sizes and features"),
            (
                "sapwood info whole-disk.img",
                "the partitions of a disk image",
            ),
        ],
    ),
    (
        "cp",
        &[
            (
                "sapwood cp -a tree/ disk.img:/srv",
                "a directory into an image, with owners",
            ),
            (
                "sapwood cp 'disk.img:/var/log/*.log' .",
                "files out of an image",
            ),
            (
                "sapwood cp -r disk.img#2:/etc other.img:/",
                "from a partition into another image",
            ),
            (
                "sapwood cp - disk.img:/etc/motd < motd",
                "standard input into a file",
            ),
        ],
    ),
    (
        "mv",
        &[
            ("sapwood mv disk.img:/a.txt /b.txt", "a new name"),
            (
                "sapwood mv -v 'disk.img:/*.txt' /docs",
                "several into a directory",
            ),
        ],
    ),
    (
        "rm",
        &[
            ("sapwood rm disk.img:/tmp/file", "a file"),
            (
                "sapwood rm -rf 'disk.img:/var/cache/*'",
                "everything in a directory",
            ),
        ],
    ),
    (
        "mkdir",
        &[(
            "sapwood mkdir -p -m 750 disk.img:/srv/www/html",
            "with missing parents",
        )],
    ),
    (
        "ln",
        &[
            ("sapwood ln -s ../run disk.img:/var/run", "a symbolic link"),
            (
                "sapwood ln disk.img:/bin/sh /bin/bash",
                "a further name of a file",
            ),
        ],
    ),
    (
        "write",
        &[
            (
                "echo box | sapwood write disk.img:/etc/hostname",
                "standard input becomes a file",
            ),
            (
                "date | sapwood write --append disk.img:/var/log/notes",
                "add to a file",
            ),
        ],
    ),
    (
        "edit",
        &[
            (
                "sapwood edit disk.img:/etc/fstab",
                "with $VISUAL or $EDITOR",
            ),
            (
                "sapwood edit -e 'sed -i s/a/b/' disk.img:/etc/motd",
                "with a command",
            ),
        ],
    ),
    (
        "touch",
        &[
            (
                "sapwood touch disk.img:/etc/ready",
                "an empty file, or a new time",
            ),
            (
                "sapwood touch -d '2025-07-01 12:00' disk.img:/f",
                "a given time",
            ),
        ],
    ),
    (
        "truncate",
        &[(
            "sapwood truncate -s 1G disk.img:/swapfile",
            "a file of that size, with a hole",
        )],
    ),
    (
        "chmod",
        &[
            ("sapwood chmod 640 disk.img:/etc/shadow", "octal"),
            (
                "sapwood chmod -R u+rwX,go-w disk.img:/srv",
                "symbolic, with everything below",
            ),
        ],
    ),
    (
        "chown",
        &[
            (
                "sapwood chown -R www-data: disk.img:/srv/www",
                "a name of the image's /etc/passwd",
            ),
            ("sapwood chown 1000:1000 disk.img:/home/ann", "numbers"),
        ],
    ),
    (
        "shell",
        &[
            (
                "sapwood shell disk.img",
                "a prompt in the image: ls -l, cd etc, cp fstab2 :fstab, exit",
            ),
            (
                "sapwood shell --read-only disk.img#root:/etc",
                "look around in a partition, starting in /etc",
            ),
            (
                "echo 'mkdir new' | sapwood shell disk.img",
                "lines of a pipe, each taking effect; apply is all or nothing",
            ),
        ],
    ),
    (
        "apply",
        &[
            (
                "sapwood apply disk.img changes.txt",
                "all commands of a script, or none of them",
            ),
            (
                "echo 'rm -r /var/cache' | sapwood apply --dry-run disk.img -",
                "what a script would change",
            ),
            (
                "sapwood apply --debugfs disk.img requests.txt",
                "a script of debugfs -w -f",
            ),
        ],
    ),
    (
        "xattr",
        &[
            ("sapwood xattr list -v disk.img:/f", "names and values"),
            ("sapwood xattr set user.note hello disk.img:/f", "set one"),
        ],
    ),
    (
        "xattr list",
        &[(
            "sapwood xattr list --values disk.img:/f",
            "names and values",
        )],
    ),
    (
        "xattr get",
        &[(
            "sapwood xattr get -e hex security.capability disk.img:/bin/ping",
            "in hex",
        )],
    ),
    (
        "xattr set",
        &[(
            "sapwood xattr set user.key 0x00ff disk.img:/f",
            "bytes in hex",
        )],
    ),
    (
        "xattr remove",
        &[("sapwood xattr remove user.note disk.img:/f", "remove one")],
    ),
    (
        "mount",
        &[
            (
                "sapwood mount disk.img mnt",
                "as root or as an ordinary user",
            ),
            (
                "sapwood mount -o ro,subvol=home disk.img mnt",
                "one subvolume, read-only",
            ),
        ],
    ),
    (
        "umount",
        &[("sapwood umount mnt", "returns when the image is complete")],
    ),
    (
        "sync",
        &[("sapwood sync mnt", "everything written so far is durable")],
    ),
    (
        "stats",
        &[(
            "sapwood stats --watch mnt",
            "the counters of a mount, each second",
        )],
    ),
    (
        "subvolume",
        &[
            ("sapwood subvolume list disk.img", "all of them"),
            (
                "sapwood subvolume snapshot -r disk.img:/ /monday",
                "a read-only snapshot of the default subvolume, in it",
            ),
        ],
    ),
    (
        "subvolume list",
        &[("sapwood subvolume list --json disk.img", "as JSON")],
    ),
    (
        "subvolume create",
        &[(
            "sapwood subvolume create disk.img:/home",
            "an empty subvolume",
        )],
    ),
    (
        "subvolume snapshot",
        &[
            (
                "sapwood subvolume snapshot -r disk.img:/home /monday",
                "a read-only snapshot",
            ),
            (
                "sapwood subvolume snapshot --top-level disk.img:/@ /@monday",
                "next to the default subvolume, not in it",
            ),
        ],
    ),
    (
        "subvolume delete",
        &[(
            "sapwood subvolume delete disk.img:/monday",
            "delete a snapshot",
        )],
    ),
    (
        "subvolume get-default",
        &[("sapwood subvolume get-default disk.img", "its id and path")],
    ),
    (
        "subvolume set-default",
        &[
            ("sapwood subvolume set-default disk.img @", "by path or id"),
            (
                "sapwood subvolume set-default mnt/monday",
                "a subvolume of a mount",
            ),
        ],
    ),
    (
        "subvolume set-read-only",
        &[(
            "sapwood subvolume set-read-only disk.img:/home",
            "no more changes",
        )],
    ),
    (
        "rescue",
        &[
            ("sapwood rescue disk.img", "what is left of a damaged image"),
            (
                "sapwood rescue copy disk.img /mnt/backup",
                "copy everything that can be read",
            ),
        ],
    ),
    (
        "rescue deleted",
        &[(
            "sapwood rescue deleted disk.img --since 2026-11-20",
            "removed files, and the part of each that is readable",
        )],
    ),
    ("rescue copy", crate::rescue::COPY_EXAMPLES),
    ("check", crate::check::EXAMPLES),
    (
        "undo",
        &[
            (
                "sapwood undo disk.img.undo",
                "restore disk.img as it was before the repair",
            ),
            (
                "sapwood undo --image /dev/sdb1 repair.undo",
                "the device has another name now",
            ),
        ],
    ),
    (
        "scrub",
        &[
            (
                "sapwood scrub a.img b.img",
                "verify and repair both copies of a btrfs over two devices",
            ),
            (
                "sapwood scrub --limit 50M --state disk.scrub disk.img",
                "at 50 MB a second; the same command continues after an interruption",
            ),
            (
                "sapwood scrub mnt",
                "the same of a mount, which stays in use",
            ),
            (
                "sapwood scrub --from backup.img --from a.stream disk.img",
                "repair what has no good copy from an older image and a stream",
            ),
        ],
    ),
    (
        "balance",
        &[
            (
                "sapwood balance --resume mnt",
                "continue an interrupted one in a mount",
            ),
            (
                "sapwood balance --status mnt",
                "whether one runs or was interrupted",
            ),
            (
                "sapwood balance -d convert=raid1 -m convert=raid1 a.img b.img",
                "two copies of everything",
            ),
            (
                "sapwood balance -d usage=50 disk.img",
                "give back the unused space of half empty block groups",
            ),
        ],
    ),
    ("quota", crate::quota::EXAMPLES),
    ("quota show", crate::quota::SHOW_EXAMPLES),
    ("quota enable", crate::quota::ENABLE_EXAMPLES),
    ("quota disable", crate::quota::DISABLE_EXAMPLES),
    ("quota rescan", crate::quota::RESCAN_EXAMPLES),
    ("quota limit", crate::quota::LIMIT_EXAMPLES),
    ("quota create", crate::quota::CREATE_EXAMPLES),
    ("quota remove", crate::quota::REMOVE_EXAMPLES),
    ("quota assign", crate::quota::ASSIGN_EXAMPLES),
    ("quota unassign", crate::quota::UNASSIGN_EXAMPLES),
    ("device", crate::device::EXAMPLES),
    ("device add", crate::device::ADD_EXAMPLES),
    ("device remove", crate::device::REMOVE_EXAMPLES),
    ("device replace", crate::device::REPLACE_EXAMPLES),
    ("device usage", crate::device::USAGE_EXAMPLES),
    (
        "resize",
        &[
            ("sapwood resize disk.img +10G", "10 GiB more"),
            ("sapwood resize mnt +10G", "of a mount, which stays in use"),
            ("sapwood resize mnt 2:max", "all of device 2 of a mount"),
            (
                "sapwood resize disk.img#root +1G",
                "a partition, into the room after it",
            ),
            (
                "sapwood resize disk.img min",
                "as small as the files allow, before it is copied elsewhere",
            ),
        ],
    ),
    (
        "trim",
        &[(
            "sapwood trim disk.img",
            "free space becomes holes; fstrim does it for a mount",
        )],
    ),
    (
        "verity",
        &[(
            "sapwood verity format root.img root.hash",
            "a hash tree; its root hash is printed",
        )],
    ),
    (
        "verity format",
        &[(
            "sapwood verity format --root-hash-file root.roothash root.img root.hash",
            "also writes the root hash to a file",
        )],
    ),
    (
        "verity verify",
        &[
            (
                "sapwood verity verify --root-hash-file root.roothash root.img root.hash",
                "reads and verifies everything",
            ),
            (
                "sapwood verity verify --certificate cert.pem disk.img#root",
                "verifies the signature of the root hash, then everything",
            ),
        ],
    ),
    (
        "verity dump",
        &[(
            "sapwood verity dump root.hash",
            "the superblock of the tree",
        )],
    ),
    ("verity enable", crate::verity::ENABLE_EXAMPLES),
    ("verity measure", crate::verity::MEASURE_EXAMPLES),
    (
        "luks",
        &[(
            "sapwood luks format --size 1G --key-file root.key root.img",
            "an encrypted image that mkfs then fills",
        )],
    ),
    ("luks format", crate::luks::FORMAT_EXAMPLES),
    (
        "luks dump",
        &[("sapwood luks dump root.img", "cipher and key slots")],
    ),
    ("doctor", crate::doctor::EXAMPLES),
    ("help", super::HELP_EXAMPLES),
    ("dump", &[("sapwood dump disk.img super", "the superblock")]),
    (
        "demo",
        &[(
            "sapwood demo -t ext4",
            "create, mount, crash and recover an ext4",
        )],
    ),
    (
        "mount-options",
        &[("sapwood mount-options", "every option of mount -o")],
    ),
    (
        "mkfs-options",
        &[("sapwood mkfs-options", "every option of mkfs")],
    ),
];

/// The examples of a command.
pub(crate) fn examples(path: &str) -> &'static [Example] {
    let found = EXAMPLES.iter().find(|(command, _)| *command == path);
    found.map_or(&[], |(_, examples)| examples)
}
