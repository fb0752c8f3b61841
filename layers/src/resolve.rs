//! Resolves a path to the module of the crate that defines its item, through re-exports.

use crate::crate_source::{CrateSource, ModulePath};

/// Re-exports of re-exports are followed this far.
const DEPTH: usize = 16;

/// The module that defines the item named by `path` in the module `from`. `None` if another crate
/// defines it.
pub(crate) fn resolve(
    source: &CrateSource,
    from: &ModulePath,
    path: &[String],
) -> Option<ModulePath> {
    resolve_within(source, from, path, DEPTH)
}

fn resolve_within(
    source: &CrateSource,
    from: &ModulePath,
    path: &[String],
    depth: usize,
) -> Option<ModulePath> {
    let depth = depth.checked_sub(1)?;
    let (first, rest) = path.split_first()?;
    let module = source.modules.get(from)?;
    match first.as_str() {
        "crate" => follow(source, Vec::new(), rest, depth),
        "self" => follow(source, from.clone(), rest, depth),
        "super" => {
            let above = from.get(..from.len().checked_sub(1)?)?;
            if rest.first().is_some_and(|next| next == "super") {
                return resolve_within(source, &above.to_vec(), rest, depth);
            }
            follow(source, above.to_vec(), rest, depth)
        }
        _ if module.children.contains(first) => follow(source, from.clone(), path, depth),
        _ => {
            let target = module.imports.get(first)?;
            if target == path {
                return None;
            }
            let mut whole = target.clone();
            whole.extend_from_slice(rest);
            resolve_within(source, from, &whole, depth)
        }
    }
}

/// Follows names from the module `at` downwards and through its re-exports.
fn follow(
    source: &CrateSource,
    at: ModulePath,
    names: &[String],
    depth: usize,
) -> Option<ModulePath> {
    let depth = depth.checked_sub(1)?;
    let Some((first, rest)) = names.split_first() else {
        return Some(at);
    };
    let module = source.modules.get(&at)?;
    if module.children.contains(first) {
        let mut below = at;
        below.push(first.clone());
        return follow(source, below, rest, depth);
    }
    if module.items.contains(first) {
        return Some(at);
    }
    if let Some(target) = module.imports.get(first) {
        let mut whole = target.clone();
        whole.extend_from_slice(rest);
        return resolve_within(source, &at, &whole, depth);
    }
    for glob in &module.globs {
        let mut whole = glob.clone();
        whole.extend_from_slice(names);
        if let Some(found) = resolve_within(source, &at, &whole, depth) {
            return Some(found);
        }
    }
    Some(at)
}
