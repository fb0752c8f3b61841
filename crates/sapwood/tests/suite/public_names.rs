//! The names of the library's interface, in `public-names.txt`: a change of the interface is a
//! change of that list. The names are read from the formatted source. Names that a macro makes are
//! not among them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn the_list_of_public_names_is_current() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = public_names(&package.join("src"));
    let list = package.join("public-names.txt");
    if std::env::var_os("UPDATE_PUBLIC_NAMES").is_some() {
        let lines: Vec<String> = names.iter().map(|name| format!("{name}\n")).collect();
        fs::write(&list, lines.concat()).unwrap();
    }
    let text = fs::read_to_string(&list).unwrap();
    let listed: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let new: Vec<_> = names.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&names).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "new: {new:?}, gone: {gone:?}; UPDATE_PUBLIC_NAMES=1 writes public-names.txt"
    );
}

fn public_names(source: &Path) -> BTreeSet<String> {
    let root = fs::read_to_string(source.join("lib.rs")).unwrap();
    let (interface, _) = root.split_once("pub mod internal").unwrap();
    let mut names: BTreeSet<String> = interface
        .split("\npub use ")
        .skip(1)
        .flat_map(used)
        .collect();
    let mut waiting = vec![source.to_owned()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let below = fs::read_dir(path).unwrap();
            waiting.extend(below.map(|entry| entry.unwrap().path()));
        } else {
            add_members(&path, &mut names);
        }
    }
    names
}

/// The names of a `pub use`.
fn used(statement: &str) -> Vec<String> {
    let (statement, _) = statement.split_once(';').unwrap();
    let list = match statement.split_once('{') {
        Some((_, list)) => list.trim_end_matches('}'),
        None => statement.rsplit([':', ' ']).next().unwrap(),
    };
    let names = list.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Adds methods, fields and variants of the public types that a file has.
fn add_members(file: &Path, names: &mut BTreeSet<String>) {
    let text = fs::read_to_string(file).unwrap();
    let (mut owner, mut variants, mut hidden) = (None, false, false);
    for line in text.lines().filter(|line| !line.is_empty()) {
        if !line.starts_with([' ', '}']) {
            owner = owner_of(line).filter(|owner| names.contains(*owner));
            variants = line.starts_with("pub enum ");
        }
        match line.trim_start() {
            "#[doc(hidden)]" => hidden = true,
            text if text.starts_with("#[") || text.starts_with("///") => {}
            _ => {
                if let Some(owner) = owner.filter(|_| !hidden)
                    && let Some(member) = member(line, variants)
                {
                    names.insert(format!("{owner}::{member}"));
                }
                hidden = false;
            }
        }
    }
}

/// The type of an item that begins here.
fn owner_of(line: &str) -> Option<&str> {
    let text = match line.strip_prefix("impl") {
        Some(text) if text.starts_with('<') => text.split_once("> ")?.1,
        Some(text) => text.strip_prefix(' ')?,
        None => {
            let kinds = ["pub struct ", "pub enum ", "pub trait "];
            kinds.iter().find_map(|kind| line.strip_prefix(kind))?
        }
    };
    // An implementation of a trait adds no name.
    (!text.contains(" for ")).then(|| word(text))
}

/// The public name that a line of an item declares.
fn member(line: &str, variants: bool) -> Option<&str> {
    let text = line
        .strip_prefix("    ")
        .filter(|text| !text.starts_with(' '))?;
    let name = match text.strip_prefix("pub ") {
        Some(text) => {
            let text = text.strip_prefix("const ").unwrap_or(text);
            word(text.strip_prefix("fn ").unwrap_or(text))
        }
        None if variants && text.starts_with(char::is_uppercase) => word(text),
        None => return None,
    };
    Some(name)
}

/// The identifier at the start of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text.get(..end.unwrap_or(text.len())).unwrap_or_default()
}
