//! The declared options of mkfs as arguments of the command line.

use clap::{Arg, ArgAction, ArgMatches, Command};
use sapwood::internal::mkfs_table::{self, Form, MkfsOption};

/// The options that were given, in their order, with their values.
#[derive(Debug)]
pub(super) struct Given(pub(super) Vec<(&'static MkfsOption, Option<String>)>);

/// The name under which clap keeps an option.
fn id(option: &MkfsOption) -> &'static str {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    option.long.unwrap_or_else(|| {
        let at = option.short.and_then(|letter| LETTERS.find(letter));
        at.and_then(|at| LETTERS.get(at..=at)).unwrap_or_default()
    })
}

fn argument(option: &'static MkfsOption) -> Arg {
    let mut arg = Arg::new(id(option)).help(option.help());
    if let Some(letter) = option.short {
        arg = arg.short(letter);
    }
    if let Some(word) = option.long {
        arg = arg.long(word);
    }
    if let Some(letter) = option.short_alias {
        arg = arg.visible_short_alias(letter);
    }
    if let Some(word) = option.alias {
        arg = arg.visible_alias(word);
    }
    match option.form {
        Form::Alone => arg.action(ArgAction::SetTrue),
        Form::Value(placeholder) => arg.action(ArgAction::Set).value_name(placeholder),
        Form::List(placeholder) => arg.action(ArgAction::Append).value_name(placeholder),
    }
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        command.args(mkfs_table::all().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for option in mkfs_table::all() {
            let id = id(option);
            let values: Vec<Option<String>> = match option.form {
                Form::Alone if matches.get_flag(id) => vec![None],
                Form::Alone => continue,
                Form::Value(_) | Form::List(_) => {
                    let values = matches.get_many::<String>(id).into_iter().flatten();
                    values.map(|value| Some(value.clone())).collect()
                }
            };
            let places = matches.indices_of(id).into_iter().flatten();
            given.extend(
                places
                    .zip(values)
                    .map(|(place, value)| (place, option, value)),
            );
        }
        given.sort_by_key(|(place, ..)| *place);
        let given = given.into_iter().map(|(_, option, value)| (option, value));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Cli, Command};
    use clap::Parser;

    #[test]
    fn options_are_taken_in_their_order() {
        let words = [
            "sapwood", "mkfs", "-O", "a,b", "-F", "-L", "x", "-O=^c", "img", "-b1k",
        ];
        let Command::Mkfs(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("another command");
        };
        let given = args.given.0.iter();
        let given: Vec<_> = given
            .map(|(option, value)| (option.name(), value.as_deref()))
            .collect();
        let expected = [
            ("-O", Some("a,b")),
            ("--force", None),
            ("--label", Some("x")),
            ("-O", Some("^c")),
            ("-b", Some("1k")),
        ];
        assert_eq!(
            given,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        assert!(Cli::try_parse_from(["sapwood", "mkfs", "-L", "x", "-L", "y", "img"]).is_err());
    }
}
