//! Comparison of names in casefolded directories: Unicode 12.1, full case folding, canonical
//! decomposition, without default-ignorable code points.
//!
//! Rust's standard library and the normalization crate implement newer versions of Unicode. Code
//! points newer than 12.1 must stay unchanged, or a name would get another hash than the one it was
//! stored under. [`NEWER`] lists the code points that those would change. `tests/trials/hashes.rs`
//! compares all code points with `debugfs`, so it detects a change of either. Source: Unicode's
//! `CaseFolding.txt`, `DerivedCoreProperties.txt`; the output of `dx_hash -c` in `debugfs`.

use unicode_normalization::UnicodeNormalization;

/// Code points (Default_Ignorable_Code_Point of Unicode 12.1) that are omitted.
const IGNORED: [(u32, u32); 17] = [
    (0xad, 0xad),
    (0x34f, 0x34f),
    (0x61c, 0x61c),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180e),
    (0x200b, 0x200f),
    (0x202a, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfff8),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

/// Code points newer than 12.1 that have a case, a decomposition or a combining class in newer
/// versions.
const NEWER: [(u32, u32); 66] = [
    (0x5c8, 0x5c9),
    (0x897, 0x89f),
    (0x8ca, 0x8d2),
    (0xc3c, 0xc3c),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1c89, 0x1c89),
    (0x1dfa, 0x1dfa),
    (0x2c2f, 0x2c2f),
    (0xa7c0, 0xa7c0),
    (0xa7c7, 0xa7c7),
    (0xa7c9, 0xa7c9),
    (0xa7cb, 0xa7cc),
    (0xa7ce, 0xa7ce),
    (0xa7d0, 0xa7d0),
    (0xa7d2, 0xa7d2),
    (0xa7d4, 0xa7d4),
    (0xa7d6, 0xa7d6),
    (0xa7d8, 0xa7d8),
    (0xa7da, 0xa7da),
    (0xa7dc, 0xa7dc),
    (0xa7f5, 0xa7f5),
    (0xa82c, 0xa82c),
    (0x10570, 0x1057a),
    (0x1057c, 0x1058a),
    (0x1058c, 0x10592),
    (0x10594, 0x10595),
    (0x105c9, 0x105c9),
    (0x105e4, 0x105e4),
    (0x10d50, 0x10d65),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf),
    (0x10ef0, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x11383, 0x11383),
    (0x11385, 0x11385),
    (0x1138e, 0x1138e),
    (0x11391, 0x11391),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113c8),
    (0x113ce, 0x113d0),
    (0x11938, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x11f41, 0x11f42),
    (0x16121, 0x16128),
    (0x1612f, 0x1612f),
    (0x16d68, 0x16d6a),
    (0x16ea0, 0x16eb8),
    (0x16ff0, 0x16ff1),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d252),
    (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f),
    (0x1d280, 0x1d281),
    (0x1e08f, 0x1e08f),
    (0x1e2ae, 0x1e2ae),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
];

fn within(table: &[(u32, u32)], c: char) -> bool {
    let number = u32::from(c);
    let at = table.partition_point(|&(_, last)| last < number);
    table.get(at).is_some_and(|&(first, _)| first <= number)
}

/// The folded form of a name, which casefolded directories compare and hash. `None` if the name is
/// not UTF-8: such names are compared and hashed unchanged, and cannot be created if the superblock
/// has the "strict" flag.
pub fn casefold(name: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(name).ok()?;
    let (mut folded, mut run) = (String::new(), String::new());
    for c in text.chars() {
        let (newer, ignored) = (within(&NEWER, c), within(&IGNORED, c));
        if newer || ignored {
            // Combining marks are not reordered across it, either.
            folded.extend(run.nfd());
            run.clear();
            folded.extend(newer.then_some(c));
        } else {
            unicode_normalization::char::decompose_canonical(c, |part| fold(part, &mut run));
        }
    }
    folded.extend(run.nfd());
    Some(folded.into_bytes())
}

/// Full case folding of one code point: lower case of its upper case. Exceptions are Cherokee,
/// which folds to upper case; the dotless i, whose upper case equals the dotted i's; and the
/// capital sharp s.
fn fold(c: char, to: &mut String) {
    match c {
        '\u{131}' | '\u{13a0}'..='\u{13f5}' => to.push(c),
        '\u{13f8}'..='\u{13fd}' => to.extend(char::from_u32(u32::from(c) - 8)),
        '\u{ab70}'..='\u{abbf}' => to.extend(char::from_u32(u32::from(c) - 0xab70 + 0x13a0)),
        '\u{1e9e}' => to.push_str("ss"),
        _ => to.extend(c.to_uppercase().flat_map(char::to_lowercase)),
    }
}
