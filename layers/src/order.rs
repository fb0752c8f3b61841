//! The declared order of modules.

use std::collections::BTreeMap;
use std::path::Path;

/// Reads the order of every listed crate: `crate: module module ...`, lowest first. Indented
/// lines continue the one before; `#` starts a comment.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn parse(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        let modules = match line.split_once(':') {
            Some((name, rest)) if !line.starts_with(char::is_whitespace) => {
                let name = name.trim().to_owned();
                if all.insert(name.clone(), Vec::new()).is_some() {
                    return Err(format!("{name} is listed twice"));
                }
                current = Some(name);
                rest
            }
            _ => line,
        };
        let list = current.as_ref().and_then(|name| all.get_mut(name));
        let list = list.ok_or_else(|| format!("no crate before: {line}"))?;
        list.extend(modules.split_whitespace().map(str::to_owned));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn indented_lines_continue_a_crate() {
        let all = parse("# all\na: x y # low\n  z\nb: q\n").unwrap();
        assert_eq!(all["a"], ["x", "y", "z"]);
        assert_eq!(all["b"], ["q"]);
    }

    #[test]
    fn modules_without_a_crate_are_an_error() {
        assert!(parse("  x\n").is_err());
        assert!(parse("a: x\na: y\n").is_err());
    }
}
