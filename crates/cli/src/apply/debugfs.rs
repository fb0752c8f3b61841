//! Scripts of `debugfs -w -f`: each request becomes the words of a command of Sapwood.

use crate::script::{self, Line, Wrong};

/// A command, and what must be true before it.
pub(crate) struct Request {
    /// The command.
    pub(crate) line: Line,
    /// The condition that must hold.
    pub(crate) before: Before,
}

/// A condition that must hold before a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Before {
    /// No condition.
    Nothing,
    /// No file has this name.
    Absent(String),
    /// It is an empty directory.
    Empty(String),
}

/// The commands of a script of debugfs.
pub(crate) fn parse(script: &str) -> Result<Vec<Request>, Wrong> {
    let mut requests = Vec::new();
    let mut state = State {
        dir: "/".to_owned(),
        local: String::new(),
    };
    for (number, line) in (1..).zip(script.lines()) {
        let words = script::split(number, line.trim())?;
        let words: Vec<String> = words.into_iter().map(|word| word.text).collect();
        let Some((request, args)) = words.split_first() else {
            continue;
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let Some((words, before)) = state.translate(number, request, &args)? else {
            continue;
        };
        let line = Line {
            number,
            words,
            input: None,
        };
        requests.push(Request { line, before });
    }
    Ok(requests)
}

/// The directories that names are relative to.
struct State {
    dir: String,
    local: String,
}

type Translated = Option<(Vec<String>, Before)>;

impl State {
    /// The place of a name in the image.
    fn place(&self, name: &str) -> String {
        let dir = if name.starts_with('/') { "" } else { &self.dir };
        let names = [dir, name].into_iter().flat_map(|path| path.split('/'));
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        format!(":/{}", names.join("/"))
    }

    fn local(&self, name: &str) -> String {
        let path = if self.local.is_empty() || name.starts_with('/') {
            name.to_owned()
        } else {
            format!("{}/{name}", self.local)
        };
        // A colon in it must not end the name of an image.
        if path.starts_with('/') {
            path
        } else {
            format!("./{path}")
        }
    }

    fn translate(
        &mut self,
        number: usize,
        request: &str,
        args: &[&str],
    ) -> Result<Translated, Wrong> {
        let usage =
            |usage: &str| Wrong::new(number, format!("{request} is used as: {request} {usage}"));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let plain = |list: &[&str]| Ok(Some((words(list), Before::Nothing)));
        match (request, args) {
            ("quit" | "q" | "close" | "open" | "lpwd" | "pwd", _) => Ok(None),
            ("cd" | "chdir", [dir]) => {
                self.dir = self.place(dir).trim_start_matches(':').to_owned();
                Ok(None)
            }
            ("lcd", [dir]) => {
                self.local = self.local(dir);
                Ok(None)
            }
            ("write", [source, name]) => {
                let (source, name) = (self.local(source), self.place(name));
                let absent = Before::Absent(name.clone());
                Ok(Some((
                    words(&["cp", "--owner=0:0", "--", &source, &name]),
                    absent,
                )))
            }
            ("mkdir", [name]) => plain(&["mkdir", "--owner=0:0", "-m755", "--", &self.place(name)]),
            ("rmdir", [name]) => {
                let name = self.place(name);
                Ok(Some((
                    words(&["rm", "-r", "--", &name]),
                    Before::Empty(name),
                )))
            }
            ("rm" | "unlink", [name]) => plain(&["rm", "--", &self.place(name)]),
            ("ln" | "link", [old, new]) => plain(&["ln", "--", &self.place(old), &self.place(new)]),
            ("symlink", [name, target]) => {
                plain(&["ln", "-s", "--owner=0:0", "--", target, &self.place(name)])
            }
            ("ea_set", [name, key, value]) => {
                plain(&["xattr", "set", "--", key, value, &self.place(name)])
            }
            ("ea_rm", [name, key]) => plain(&["xattr", "remove", "--", key, &self.place(name)]),
            ("sif" | "set_inode_field", [name, field, value]) => {
                let place = self.place(name);
                match *field {
                    "mode" => {
                        let mode = u32::from_str_radix(value, 8).map(|mode| mode & 0o7777);
                        let mode = mode.map_err(|_| usage("FILE mode OCTAL"))?;
                        plain(&["chmod", &format!("{mode:o}"), &place])
                    }
                    "uid" | "gid" => {
                        let id: u32 = value.parse().map_err(|_| usage("FILE uid|gid NUMBER"))?;
                        let colon = if *field == "gid" { ":" } else { "" };
                        plain(&["chown", &format!("{colon}{id}"), &place])
                    }
                    _ => Err(usage("FILE mode|uid|gid VALUE")),
                }
            }
            ("cat", [name]) => plain(&["cat", "--", &self.place(name)]),
            ("dump", [name, target]) => {
                plain(&["cp", "--", &self.place(name), &self.local(target)])
            }
            ("ls", []) => plain(&["ls", &self.place("")]),
            ("ls" | "stat", [name]) => plain(&[request, "--", &self.place(name)]),
            ("write", _) => Err(usage("SOURCE FILE")),
            ("mkdir" | "rmdir" | "rm" | "unlink" | "cat" | "stat" | "cd" | "lcd", _) => {
                Err(usage("NAME"))
            }
            ("ln" | "link", _) => Err(usage("OLD NEW")),
            ("symlink", _) => Err(usage("NAME TARGET")),
            ("ea_set", _) => Err(usage("FILE NAME VALUE")),
            ("ea_rm", _) => Err(usage("FILE NAME")),
            ("sif" | "set_inode_field", _) => Err(usage("FILE mode|uid|gid VALUE")),
            _ => {
                let why = format!("{request:?} is no request that can be applied");
                Err(Wrong::new(number, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<String> {
        let requests = parse(script).unwrap();
        requests
            .iter()
            .map(|one| one.line.words.join(" "))
            .collect()
    }

    #[test]
    fn names_are_relative_to_the_directory() {
        let script = "cd /etc\nwrite a b\ncd x\nrm c\nrm /d\nlcd /src\nwrite a e\nquit\n";
        assert_eq!(
            words(script),
            [
                "cp --owner=0:0 -- ./a :/etc/b",
                "rm -- :/etc/x/c",
                "rm -- :/d",
                "cp --owner=0:0 -- /src/a :/etc/x/e",
            ]
        );
    }

    #[test]
    fn fields_of_an_inode_become_modes_and_owners() {
        assert_eq!(
            words("sif f mode 0100644\nsif f uid 7\nset_inode_field f gid 8\n"),
            ["chmod 644 :/f", "chown 7 :/f", "chown :8 :/f"]
        );
        assert_eq!(
            parse("rmdir d").unwrap()[0].before,
            Before::Empty(":/d".to_owned())
        );
    }

    #[test]
    fn other_requests_are_refused_by_name() {
        let refused = |script: &str| parse(script).err().unwrap().to_string();
        assert_eq!(
            refused("\nclri <12>"),
            "line 2: \"clri\" is no request that can be applied"
        );
        assert_eq!(refused("ln a"), "line 1: ln is used as: ln OLD NEW");
        assert!(refused("sif f links_count 3").contains("mode|uid|gid"));
        assert!(refused("sif f uid --recursive").contains("NUMBER"));
    }
}
