//! Links of the documentation: each leads to a page that exists, and to a heading of it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use libtest_mimic::Trial;
use sapwood_tests::{Outcome, trial};

/// Pages of the root directory that the site has next to the pages of docs.
const PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "CHANGELOG.md",
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("links_lead_to_pages_and_headings", &[], links),
        trial("the_site_has_every_page", &[], summary),
        trial("links_and_headings_are_found_in_text", &[], parsing),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All pages, by their paths from the root.
fn pages() -> Result<Vec<PathBuf>, String> {
    let mut pages: Vec<PathBuf> = PAGES.map(PathBuf::from).to_vec();
    for dir in ["docs", "docs/recipes"] {
        let failed = |error| format!("{dir}: {error}");
        for entry in fs::read_dir(root().join(dir)).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if Path::new(&name).extension() == Some(OsStr::new("md")) {
                pages.push(Path::new(dir).join(name));
            }
        }
    }
    Ok(pages)
}

fn read(page: &Path) -> Result<String, String> {
    fs::read_to_string(root().join(page)).map_err(|error| format!("{}: {error}", page.display()))
}

/// The lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence && !line.starts_with("    ")
    })
}

/// Targets of the links of a text. A link may be broken over two lines.
fn targets(text: &str) -> Vec<String> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let after = text.split("](").skip(1);
    let ends = after.filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.to_owned()).collect()
}

/// Anchors of the headings, as the forge and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|line| {
        let rest = line.trim_start_matches('#');
        rest.strip_prefix(' ').filter(|_| line.starts_with('#'))
    });
    headings
        .map(|heading| {
            let kept = heading.trim().chars().filter_map(|char| match char {
                ' ' => Some('-'),
                '-' | '_' => Some(char),
                char if char.is_alphanumeric() => Some(char.to_ascii_lowercase()),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}

/// A relative path from a page, without `..`.
fn resolved(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

fn links() -> Outcome {
    let mut wrong = Vec::new();
    let mut found = 0;
    for page in pages()? {
        let text = read(&page)?;
        for target in targets(&text) {
            if target.starts_with("https://") {
                continue;
            }
            found += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if path.is_empty() {
                page.clone()
            } else {
                resolved(&page, path)
            };
            if !root().join(&to).is_file() {
                wrong.push(format!("{}: no file {target}", page.display()));
            } else if !anchor.is_empty() && !anchors(&read(&to)?).contains(anchor) {
                wrong.push(format!("{}: no heading {target}", page.display()));
            } else if page.starts_with("docs") && !is_page(&to) {
                wrong.push(format!("{}: not on the site: {target}", page.display()));
            }
        }
    }
    if wrong.is_empty() && found > 50 {
        Ok(())
    } else {
        Err(format!("{found} links\n{}", wrong.join("\n")).into())
    }
}

fn is_page(path: &Path) -> bool {
    path.starts_with("docs") || PAGES.iter().any(|page| path == Path::new(page))
}

fn summary() -> Outcome {
    let summary = Path::new("docs/SUMMARY.md");
    let listed = targets(&summary_text()?);
    let listed: BTreeSet<PathBuf> = listed.iter().map(|one| resolved(summary, one)).collect();
    let pages: BTreeSet<PathBuf> = pages()?
        .into_iter()
        .filter(|page| page != summary)
        .collect();
    let missing: Vec<_> = pages.symmetric_difference(&listed).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("only in one of docs and SUMMARY.md: {missing:?}").into())
    }
}

/// The summary, whose nested lists are no code.
fn summary_text() -> Result<String, String> {
    let text = read(Path::new("docs/SUMMARY.md"))?;
    Ok(text
        .lines()
        .map(str::trim_start)
        .collect::<Vec<_>>()
        .join("\n"))
}

fn parsing() -> Outcome {
    let text = "# A *b*: `c-d`\n[x\ny](z.md#a) [u](#v)\n```sh\n# no\n[q](r)\n```\n## Last\n";
    let anchors = anchors(text).into_iter().collect::<Vec<_>>();
    if targets(text) != ["z.md#a", "#v"] || anchors != ["a-b-c-d", "last"] {
        return Err(format!("{:?} {anchors:?}", targets(text)).into());
    }
    let to = resolved(Path::new("docs/recipes/a.md"), "../b.md");
    if to == Path::new("docs/b.md") {
        Ok(())
    } else {
        Err(format!("{to:?}").into())
    }
}
