//! Directory hashes against `debugfs`'s `dx_hash`: all kinds, all lengths, bytes of 128 and above.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use sapwood_ext4_format::{DirHasher, HashVersion, NameHash, casefold};
use sapwood_testing::machine::{Need, trial};

/// A numeric seed as `debugfs` takes it, and as the superblock holds it.
const SEED_TEXT: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];

/// Kinds as `debugfs` names them (the unsigned ones by number only), our number, unsigned.
const KINDS: [(&str, u8, bool); 6] = [
    ("legacy", 0, false),
    ("half_md4", 1, false),
    ("tea", 2, false),
    ("3", 0, true),
    ("4", 1, true),
    ("5", 2, true),
];

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Need::Program("mke2fs"), Need::Program("debugfs")];
    let mut tests: Vec<Trial> = KINDS
        .into_iter()
        .map(|(name, number, unsigned)| {
            let title = format!("hash_{name}_equals_debugfs");
            trial(title, &needs, move || {
                against_debugfs(name, number, unsigned)
            })
        })
        .collect();
    tests.push(trial("folded_names_hash_as_with_debugfs", &needs, folded));
    tests
}

/// Bytes that pass through the command line of `debugfs` in quotes.
fn name(len: usize, state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u8
    };
    let mut name = Vec::new();
    while name.len() < len {
        let byte = next();
        if byte > b' ' && byte != b'"' && byte != 0x7f {
            name.push(byte);
        }
    }
    name
}

fn image(dir: &Path, args: &[&str]) -> Result<PathBuf, Failed> {
    let image = dir.join("image");
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4"])
        .args(args)
        .arg(&image)
        .status()?;
    if made.success() {
        Ok(image)
    } else {
        Err("mke2fs failed".into())
    }
}

fn against_debugfs(kind: &str, number: u8, unsigned: bool) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), &[])?;
    let version = HashVersion::from_disk(number, unsigned).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(number);
    for len in 1..=255 {
        let name = name(len, &mut state);
        let seeded = len % 2 == 0;
        let mut request = format!("dx_hash -h {kind} ").into_bytes();
        if seeded {
            request.extend(format!("-s {SEED_TEXT} ").bytes());
        }
        request.extend(b"-- \"");
        request.extend(&name);
        request.push(b'"');
        let output = Command::new("debugfs")
            .arg("-R")
            .arg(OsString::from_vec(request))
            .arg(&image)
            .output()?;
        let seed = if seeded { SEED } else { [0; 4] };
        let ours = DirHasher::new(version, seed).hash(&name).unwrap();
        let theirs =
            parse(&output.stdout).ok_or_else(|| format!("no hash for {name:?}: {output:?}"))?;
        assert_eq!(ours, theirs, "{kind}, {len} bytes: {name:?}");
    }
    Ok(())
}

/// "Hash of NAME is 0x... (minor 0x...)", where NAME may hold anything.
fn parse(line: &[u8]) -> Option<NameHash> {
    let text = String::from_utf8_lossy(line);
    let (head, minor) = text.trim_end().rsplit_once(" (minor 0x")?;
    let (_, major) = head.rsplit_once(" is 0x")?;
    Some(NameHash {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor.strip_suffix(')')?, 16).ok()?,
    })
}

/// Most of the large ranges in which all code points are alike: CJK, syllables of Korean, planes
/// without characters.
fn alike(c: char) -> bool {
    let number = u32::from(c);
    let within = matches!(number, 0x3400..0xa000 | 0xac00..0xf900 | 0x17000..0x1b000 | 0x20000..0x2f000 | 0x30000..0xe0000 | 0xe1000..);
    within && !number.is_multiple_of(0x61)
}

/// Folds each code point alone, and before, between and after marks that must be sorted; compares
/// the hash with `debugfs`.
fn folded() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), &["-O", "casefold", "-E", "encoding=utf8-12.1"])?;
    // These characters would end the name, the line or the word on debugfs's command line.
    let all = (' '..=char::MAX).filter(|c| !matches!(c, '"' | '\x7f') && !alike(*c));
    let forms = |c: char| {
        [
            format!("{c}a"),
            format!("a\u{315}{c}\u{334}"),
            format!("{c}\u{345}\u{300}{c}"),
        ]
    };
    let names: Vec<String> = all.flat_map(forms).collect();
    let script = dir.path().join("script");
    let lines = names
        .iter()
        .map(|name| format!("dx_hash -c -e utf8-12.1 -h half_md4 -- \"{name}\"\n"));
    std::fs::write(&script, lines.collect::<String>())?;
    let output = Command::new("debugfs")
        .arg("-f")
        .arg(&script)
        .arg(&image)
        .output()?;
    let hashes: Vec<NameHash> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect();
    assert_eq!(hashes.len(), names.len());
    let hasher = DirHasher::new(HashVersion::HalfMd4, [0; 4]);
    let wrong: Vec<&String> = names
        .iter()
        .zip(hashes)
        .filter(|(name, theirs)| hasher.hash(&casefold(name.as_bytes()).unwrap()) != Some(*theirs))
        .map(|(name, _)| name)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} names, first {:?}",
        wrong.len(),
        wrong.get(..20).unwrap_or(&wrong)
    );
    Ok(())
}
