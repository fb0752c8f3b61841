//! `sapwood help`: commands by what a person wants to do, and examples of each.

use clap::Command;

/// The commands for one task.
struct Task {
    title: &'static str,
    commands: &'static [&'static str],
}

const TASKS: &[Task] = &[
    Task {
        title: "Make an image",
        commands: &["mkfs", "untar"],
    },
    Task {
        title: "Look inside",
        commands: &["ls", "cat", "stat", "tree", "find", "du", "df", "info"],
    },
    Task {
        title: "Change files",
        commands: &[
            "cp", "mv", "rm", "mkdir", "ln", "write", "edit", "touch", "truncate", "chmod",
            "chown", "xattr",
        ],
    },
    Task {
        title: "Mount",
        commands: &["mount", "umount", "sync", "stats"],
    },
    Task {
        title: "Subvolumes and snapshots (btrfs)",
        commands: &["subvolume"],
    },
    Task {
        title: "Check and maintain",
        commands: &["check", "dump"],
    },
    Task {
        title: "Learn",
        commands: &["help", "demo", "mount-options", "mkfs-options"],
    },
];

/// What the commands that no task names are listed under.
const OTHERS: &str = "More";

/// A command line, and what it does.
pub(super) type Example = (&'static str, &'static str);

/// Examples by command; a subcommand follows its command after a space.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "mkfs",
        &[
            ("sapwood mkfs --size 10G disk.img", "a new btrfs"),
            (
                "sapwood mkfs -t ext4 --size 2G -r tree/ root.img",
                "an ext4 with the files of tree/",
            ),
        ],
    ),
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
        ],
    ),
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
            "a directory and all below it",
        )],
    ),
    (
        "find",
        &[
            (
                "sapwood find disk.img:/etc -name '*.conf' -type f",
                "by name and kind",
            ),
            (
                "sapwood find disk.img --size +100M --mtime -7",
                "large, and changed this week",
            ),
            (
                "sapwood find disk.img --perm /6000 --json",
                "set-id files, as JSON",
            ),
        ],
    ),
    (
        "du",
        &[
            (
                "sapwood du -h -d 1 disk.img",
                "what the top directories take",
            ),
            ("sapwood du -sh 'disk.img:/home/*'", "each home directory"),
        ],
    ),
    (
        "df",
        &[
            ("sapwood df -h disk.img", "how full an image is"),
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
                "all that is in a directory",
            ),
        ],
    ),
    (
        "mkdir",
        &[(
            "sapwood mkdir -p -m 750 disk.img:/srv/www/html",
            "with missing ones above it",
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
                "symbolic, with all below",
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
            "each second, what a mount does",
        )],
    ),
    (
        "subvolume",
        &[
            ("sapwood subvolume list disk.img", "all of them"),
            (
                "sapwood subvolume snapshot -r disk.img:/home /monday",
                "a read-only snapshot",
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
        &[(
            "sapwood subvolume snapshot -r disk.img:/home /monday",
            "a read-only snapshot",
        )],
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
        &[("sapwood subvolume set-default disk.img 256", "by id")],
    ),
    (
        "subvolume set-read-only",
        &[(
            "sapwood subvolume set-read-only disk.img:/home",
            "no more changes",
        )],
    ),
    (
        "check",
        &[
            ("sapwood check disk.img", "exit code 0 if nothing is wrong"),
            (
                "sapwood check --check-data-csum --json disk.img",
                "all data too, as JSON",
            ),
        ],
    ),
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
pub(super) fn examples(path: &str) -> &'static [Example] {
    let found = EXAMPLES.iter().find(|(command, _)| *command == path);
    found.map_or(&[], |(_, examples)| examples)
}

/// The command line with examples in the help of each command, and its commands by task.
pub(super) fn complete(command: Command) -> Command {
    let page = page(&command);
    let template = "{about-with-newline}\n{usage-heading} {usage}{after-help}";
    let command = command.mut_subcommands(|sub| with_examples(sub, ""));
    command.help_template(template).after_help(page)
}

fn with_examples(command: Command, above: &str) -> Command {
    let path = format!("{above}{}", command.get_name());
    let below = format!("{path} ");
    let command = command.mut_subcommands(|sub| with_examples(sub, &below));
    let examples = examples(&path);
    if examples.is_empty() {
        return command;
    }
    let heading = match examples.len() {
        1 => "Example:",
        _ => "Examples:",
    };
    let mut text = heading.to_owned();
    for (line, what) in examples {
        text.push_str(&format!("\n  {line}\n      {what}"));
    }
    command.after_help(text)
}

/// The first line of what a command does.
fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    about
        .unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Tasks with the commands that there are; commands that no task names come last.
pub(super) fn tasks(command: &Command) -> Vec<(&'static str, Vec<(String, String)>)> {
    let row = |name: &str| match name {
        "help" => Some((
            name.to_owned(),
            "Show this page, or the help of a command".to_owned(),
        )),
        _ => {
            let found = command.find_subcommand(name)?;
            (!found.is_hide_set()).then(|| (name.to_owned(), about(found)))
        }
    };
    let mut tasks: Vec<_> = TASKS
        .iter()
        .map(|task| {
            (
                task.title,
                task.commands.iter().filter_map(|name| row(name)).collect(),
            )
        })
        .collect();
    let named = |name: &str| TASKS.iter().any(|task| task.commands.contains(&name));
    let others = command.get_subcommands().map(Command::get_name);
    let others: Vec<_> = others.filter(|name| !named(name)).filter_map(row).collect();
    if !others.is_empty() {
        tasks.push((OTHERS, others));
    }
    tasks
}

fn page(command: &Command) -> String {
    let mut page = String::new();
    for (title, commands) in tasks(command) {
        page.push_str(&format!("{title}:\n"));
        for (name, about) in commands {
            page.push_str(&format!("  {name:<14} {about}\n"));
        }
        page.push('\n');
    }
    page.push_str("Places:\n");
    for (place, what) in PLACES {
        page.push_str(&format!("  {place:<20} {what}\n"));
    }
    page.push_str(MORE);
    page
}

/// How a place is named.
pub(super) const PLACES: [Example; 5] = [
    (
        "disk.img:/etc",
        "a path in an image; a pattern too: 'disk.img:/etc/*.conf'",
    ),
    (
        "disk.img#2:/etc",
        "in partition 2 of a disk; #root: in the GPT partition root",
    ),
    (
        "nbd://HOST/EXPORT",
        "a server's export; also nbd+unix:///EXPORT?socket=PATH",
    ),
    ("-", "standard input or output (cp, cat, untar)"),
    (
        "--offset, --length",
        "the file system is in this range (bytes, or k, M, G, T)",
    ),
];

const MORE: &str = "
`sapwood help COMMAND` has options and examples; `man sapwood-COMMAND` is the
same as a page.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// Words of a line as a shell splits it, up to a pipe or redirection. What follows the last
    /// pipe counts.
    fn words(line: &str) -> Vec<String> {
        let line = line.rsplit("| ").next().unwrap();
        let line = line.split(" < ").next().unwrap();
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for char in line.chars() {
            match char {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                char => word.push(char),
            }
        }
        words.push(word);
        words
    }

    fn all(command: &Command, above: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{above}{}", sub.get_name());
            all(sub, &format!("{path} "), found);
            found.push(path);
        }
    }

    #[test]
    fn every_command_has_a_task_and_an_example() {
        let command = Cli::command();
        let tasks = tasks(&command);
        assert!(tasks.iter().all(|(title, _)| *title != OTHERS), "{tasks:?}");
        let mut commands = Vec::new();
        all(&command, "", &mut commands);
        for command in &commands {
            assert!(!examples(command).is_empty(), "{command} has no example");
        }
        for (command, _) in EXAMPLES {
            assert!(
                commands.iter().any(|one| one == command),
                "{command} is none"
            );
        }
        for task in TASKS {
            for name in task.commands.iter().filter(|name| **name != "help") {
                assert!(commands.iter().any(|one| one == name), "{name} is none");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        for (command, examples) in EXAMPLES {
            for (line, _) in *examples {
                let args = words(line).into_iter().map(Into::into).collect();
                let args = crate::find::with_long_options(args);
                let parsed = complete(Cli::command()).try_get_matches_from(args);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(
                    line.contains(&format!("sapwood {command} "))
                        || *line == format!("sapwood {command}"),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn help_fits_into_a_terminal() {
        let mut command = complete(Cli::command());
        let help = command.render_help().to_string();
        for line in help.lines().skip_while(|line| !line.starts_with("Usage")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for (_, examples) in EXAMPLES {
            for (line, what) in *examples {
                assert!(line.len() <= 76 && what.len() <= 72, "{line}: {what}");
            }
        }
    }
}
