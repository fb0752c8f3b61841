//! Operands that clap cannot show well. In some commands the last operand has another meaning than
//! the ones before it; others need one operand or another.

use std::fmt::Write;

use clap::Command;

use super::examples::Example;

/// Columns of a help page in the narrowest terminal that is cared for.
const COLUMNS: usize = 60;

/// Usage and operands of a command.
pub(crate) struct Operands {
    /// Path of the command below `sapwood`.
    command: &'static str,
    /// The ways to call it, without `sapwood` and the command.
    pub(crate) usage: &'static [&'static str],
    /// The operands; none if clap shows them.
    pub(crate) list: &'static [Example],
}

const ALL: &[Operands] = &[
    Operands {
        command: "cp",
        usage: &["[OPTIONS] <SOURCE>... <DESTINATION>"],
        list: &[
            (
                "<SOURCE>...",
                "Source: [IMAGE:]PATH, or - for standard input. A name in an image may be a pattern",
            ),
            (
                "<DESTINATION>",
                "Target: [IMAGE:]PATH, or - for standard output",
            ),
        ],
    },
    Operands {
        command: "mv",
        usage: &["[OPTIONS] <SOURCE>... <DESTINATION>"],
        list: &[
            ("<SOURCE>...", "Source: IMAGE:PATH; a name may be a pattern"),
            ("<DESTINATION>", "New name, or a directory: [IMAGE:]PATH"),
        ],
    },
    Operands {
        command: "ln",
        usage: &["[OPTIONS] <FILE>... <NEW>", "-s [OPTIONS] <TEXT> <NEW>"],
        list: &[
            ("<FILE>...", "Existing file: IMAGE:PATH"),
            ("<TEXT>", "Text of the symbolic link"),
            (
                "<NEW>",
                "New name, or a directory: [IMAGE:]PATH; with -s IMAGE:PATH",
            ),
        ],
    },
    Operands {
        command: "export",
        usage: &[
            "[OPTIONS] --tar <FILE> <IMAGE[:PATH]>",
            "[OPTIONS] --oci-layer <FILE> <IMAGE>",
        ],
        list: &[],
    },
    Operands {
        command: "mkdisk",
        usage: &["[OPTIONS] --part <PARTITION>... <FILE>"],
        list: &[],
    },
    Operands {
        command: "truncate",
        usage: &["[OPTIONS] -s <SIZE> <IMAGE:PATH>..."],
        list: &[],
    },
];

/// The operands of a command that clap does not show.
pub(crate) fn operands(path: &str) -> Option<&'static Operands> {
    ALL.iter().find(|one| one.command == path)
}

/// The command, whose help shows its operands.
pub(super) fn shown(command: Command, path: &str) -> Command {
    let Some(operands) = operands(path) else {
        return command;
    };
    let ways = operands.usage.iter();
    let ways: Vec<String> = ways.map(|way| format!("sapwood {path} {way}")).collect();
    let command = command.override_usage(ways.join("\n       "));
    if operands.list.is_empty() {
        return command;
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nArguments:\n{}\n{{all-args}}{{after-help}}",
        table(operands.list)
    ))
}

/// Terms with their texts next to them.
fn table(rows: &[Example]) -> String {
    let widest = rows.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
    let indent = widest + 4;
    let mut text = String::new();
    for (term, what) in rows {
        let mut line = format!("  {term:<widest$} ");
        for word in what.split(' ') {
            if line.len() + 1 + word.len() > COLUMNS {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{line}");
                line = " ".repeat(indent - 1);
            }
            let _ = write!(line, " {word}");
        }
        let _ = writeln!(text, "{line}");
    }
    text
}
