//! LZO as btrfs uses it: LZO1X streams of one sector each, framed.
//!
//! # How it works
//! The frame of an extent: its total length (`u32`), then segments of a length (`u32`) and an
//! LZO1X stream that expands to one sector, the last one to less. A length never crosses a
//! sector boundary of the frame: where fewer than four bytes are left, zeros fill the sector.
//!
//! Coder and decoder are part of this crate: the decoder must neither panic nor grow without bound
//! on hostile data, and a sector needs only matches of up to 16 KiB distance. Instructions of a
//! stream (`S` is the number of literals after the match, `H` the byte after the first):
//!
//! | first byte | means |
//! |---|---|
//! | 0..=15 after no literals | literal run of `3 + L`, long form if `L` is 0 |
//! | 0..=15 after 1 to 3 literals | match of 2, distance `(H << 2) + D + 1` |
//! | 0..=15 after a literal run | match of 3, distance `(H << 2) + D + 2049` |
//! | 16..=31 | match of `2 + L`, distance `16384 + (bit 3 << 14) + D`; 16384 itself ends the stream |
//! | 32..=63 | match of `2 + L`, distance `D + 1` |
//! | 64..=127, 128..=255 | match of 3 or 4, of 5 to 8; distance `(H << 3) + D + 1` |
//!
//! A first byte over 17 is a literal run of that minus 17. Facts: the kernel documentation's
//! page "LZO stream format as understood by Linux' LZO decompressor".

use super::{Broken, Sink};

const LENGTH: usize = 4;
const END: [u8; 3] = [0x11, 0, 0];
/// Longest distance that the coder uses.
const MAX_DISTANCE: usize = 16 * 1024;
const HASH_BITS: u32 = 12;

/// Reads a little-endian `u32` at `at`.
fn length_at(frame: &[u8], at: usize) -> Result<usize, Broken> {
    let bytes = frame
        .get(at..at.saturating_add(LENGTH))
        .ok_or(Broken::Short)?;
    let bytes = <[u8; LENGTH]>::try_from(bytes).map_err(|_| Broken::Short)?;
    usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| Broken::Length)
}

/// Expands a frame; never yields more than `limit` bytes.
///
/// # Errors
/// The frame or a stream in it is damaged.
pub(super) fn decompress(frame: &[u8], limit: usize, sector: usize) -> Result<Vec<u8>, Broken> {
    let total = length_at(frame, 0)?;
    let frame = frame.get(..total).ok_or(Broken::Short)?;
    let mut out = Sink::new(limit);
    let mut at = LENGTH;
    while at < total && !out.is_full() {
        let left = sector - at % sector;
        if left < LENGTH {
            at += left;
            if at >= total {
                break;
            }
        }
        let len = length_at(frame, at)?;
        at += LENGTH;
        let end = at.checked_add(len).ok_or(Broken::Length)?;
        let segment = frame.get(at..end).ok_or(Broken::Short)?;
        let piece = expand(segment, sector)?;
        let room = piece.len().min(limit - out.len());
        out.append(piece.get(..room).unwrap_or_default())?;
        at = end;
    }
    Ok(out.into_inner())
}

/// Makes a frame of `data`; `None` as soon as it would exceed `limit` bytes.
pub(super) fn compress(data: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
    let mut frame = vec![0; LENGTH];
    let mut table = vec![0u16; 1 << HASH_BITS];
    for piece in data.chunks(sector) {
        let left = sector - frame.len() % sector;
        if left < LENGTH {
            frame.resize(frame.len() + left, 0);
        }
        let at = frame.len();
        frame.extend_from_slice(&[0; LENGTH]);
        shrink(piece, &mut frame, &mut table);
        if frame.len() > limit {
            return None;
        }
        let len = u32::try_from(frame.len() - at - LENGTH).ok()?;
        frame
            .get_mut(at..at + LENGTH)?
            .copy_from_slice(&len.to_le_bytes());
    }
    let total = u32::try_from(frame.len()).ok()?;
    frame
        .get_mut(..LENGTH)?
        .copy_from_slice(&total.to_le_bytes());
    Some(frame)
}

/// A stream being read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<usize, Broken> {
        let (first, rest) = self.rest.split_first().ok_or(Broken::Short)?;
        self.rest = rest;
        Ok(usize::from(*first))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let (front, rest) = self.rest.split_at_checked(len).ok_or(Broken::Short)?;
        self.rest = rest;
        Ok(front)
    }

    fn pair(&mut self) -> Result<usize, Broken> {
        Ok(self.byte()? | (self.byte()? << 8))
    }

    /// A length whose short form is 0: `base`, 255 for each zero byte, then one byte more.
    fn long(&mut self, base: usize) -> Result<usize, Broken> {
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + last),
            }
        }
    }

    fn length(&mut self, short: usize, mask: usize) -> Result<usize, Broken> {
        match short & mask {
            0 => self.long(mask),
            short => Ok(short),
        }
    }
}

/// Expands one LZO1X stream to at most `limit` bytes.
fn expand(stream: &[u8], limit: usize) -> Result<Vec<u8>, Broken> {
    let mut input = Reader { rest: stream };
    let mut out = Sink::new(limit);
    // Literals that the last instruction copied; 4 stands for a run.
    let mut state = 0;
    if let Some(first) = stream.first().filter(|first| **first > 17) {
        let run = usize::from(*first) - 17;
        input.byte()?;
        out.append(input.take(run)?)?;
        state = run.min(4);
    }
    loop {
        let code = input.byte()?;
        let (len, distance, literals) = match code {
            0..=15 if state == 0 => {
                let run = 3 + input.length(code, 15)?;
                out.append(input.take(run)?)?;
                state = 4;
                continue;
            }
            0..=15 => {
                let near = (input.byte()? << 2) + (code >> 2);
                if state == 4 {
                    (3, near + 2049, code & 3)
                } else {
                    (2, near + 1, code & 3)
                }
            }
            16..=31 => {
                let len = 2 + input.length(code, 7)?;
                let pair = input.pair()?;
                let distance = 16384 + ((code & 8) << 11) + (pair >> 2);
                if distance == 16384 {
                    return Ok(out.into_inner());
                }
                (len, distance, pair & 3)
            }
            32..=63 => {
                let len = 2 + input.length(code, 31)?;
                let pair = input.pair()?;
                (len, (pair >> 2) + 1, pair & 3)
            }
            _ => {
                let distance = (input.byte()? << 3) + ((code >> 2) & 7) + 1;
                ((code >> 5) + 1, distance, code & 3)
            }
        };
        out.repeat(distance, len)?;
        out.append(input.take(literals)?)?;
        state = literals;
    }
}

fn hash(bytes: &[u8]) -> usize {
    let word = bytes
        .iter()
        .rev()
        .fold(0u32, |word, byte| (word << 8) | u32::from(*byte));
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Appends the LZO1X stream of `data` to `out`. `table` is scratch space.
fn shrink(data: &[u8], out: &mut Vec<u8>, table: &mut [u16]) {
    table.fill(u16::MAX);
    let begin = out.len();
    let mut literals = 0;
    let mut at = 0;
    while let Some(next) = data.get(at..at + 4) {
        let slot = &mut table[hash(next)];
        let candidate = usize::from(*slot);
        // A sector has at most 64 KiB; the last position stands for "none".
        *slot = at as u16;
        let distance = at.wrapping_sub(candidate);
        if candidate >= at
            || distance > MAX_DISTANCE
            || data.get(candidate..candidate + 4) != Some(next)
        {
            // Long stretches without a match are walked faster and faster.
            at += 1 + ((at - literals) >> 6);
            continue;
        }
        let same = data[at..]
            .iter()
            .zip(&data[candidate..])
            .take_while(|(a, b)| a == b)
            .count();
        put_literals(out, begin, &data[literals..at]);
        put_match(out, same, distance);
        at += same;
        literals = at;
    }
    put_literals(out, begin, &data[literals..]);
    out.extend_from_slice(&END);
}

/// The bytes of a long length: zeros for 255 each, then the rest (1 to 255).
fn put_long(out: &mut Vec<u8>, mut rest: usize) {
    while rest > 255 {
        out.push(0);
        rest -= 255;
    }
    out.push(rest as u8);
}

fn put_literals(out: &mut Vec<u8>, begin: usize, run: &[u8]) {
    let len = run.len();
    match len {
        0 => {}
        1..=238 if out.len() == begin => out.push(17 + len as u8),
        1..=3 => {
            // Both forms of match keep the count in the byte before the last.
            let at = out.len() - 2;
            out[at] |= len as u8;
        }
        4..=18 => out.push(len as u8 - 3),
        _ => {
            out.push(0);
            put_long(out, len - 18);
        }
    }
    out.extend_from_slice(run);
}

fn put_match(out: &mut Vec<u8>, len: usize, distance: usize) {
    let distance = distance - 1;
    if len <= 8 && distance < 2048 {
        out.push((((len - 1) << 5) | ((distance & 7) << 2)) as u8);
        out.push((distance >> 3) as u8);
        return;
    }
    if len <= 33 {
        out.push((32 | (len - 2)) as u8);
    } else {
        out.push(32);
        put_long(out, len - 33);
    }
    out.extend_from_slice(&((distance << 2) as u16).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_instruction_expands() {
        // Run of 4, near match of 2 is not allowed after it: distance 2049 would be; so M2.
        let mut stream = vec![21, b'a', b'b', b'c', b'd'];
        stream.extend([0x40 | (3 << 2) | 1, 0, b'x']); // match 3, distance 4, one literal
        stream.extend([3 << 2, 1]); // after one literal: match 2, distance 4 + 3 + 1
        stream.extend([32, 0, 1, 0, 0]); // match 2 + 31 + 255 + 1, distance 1
        stream.extend(END);
        let out = expand(&stream, 4096).unwrap();
        assert_eq!(&out[..10], b"abcdabcxab");
        assert_eq!(out.len(), 10 + 289);
        assert!(out[10..].iter().all(|b| *b == b'b'));
    }

    #[test]
    fn a_far_match_expands() {
        let far = vec![7u8; 2049];
        let mut stream = vec![0];
        put_long(&mut stream, far.len() - 18);
        stream.extend(&far);
        stream.extend([0, 0]); // after a run: match of 3, distance 2049
        stream.extend(END);
        assert_eq!(expand(&stream, 4096).unwrap().len(), 2052);
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let mut stream = vec![18, 1, 32];
        stream.extend(vec![0; 4000]);
        stream.extend([1, 0, 0]);
        stream.extend(END);
        assert_eq!(expand(&stream, 4096), Err(Broken::Limit));
        assert_eq!(expand(&[18, 1, 0x40, 255], 4096), Err(Broken::Distance));
        assert_eq!(expand(&[], 4096), Err(Broken::Short));
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            (any::<u8>(), 1..3000usize).prop_map(|(b, n)| vec![b; n]),
            Just(b"the same words again and again ".to_vec()),
        ];
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn frames_round_trip(data in text(), sector in prop_oneof![Just(4096usize), Just(65536)]) {
            let frame = compress(&data, usize::MAX, sector).unwrap();
            prop_assert_eq!(decompress(&frame, data.len(), sector).unwrap(), data);
        }

        #[test]
        fn hostile_frames_end(mut data in text(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            data.push(1);
            let mut frame = compress(&data, usize::MAX, 4096).unwrap();
            for (at, value) in flips {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            if let Ok(out) = decompress(&frame, 131_072, 4096) {
                prop_assert!(out.len() <= 131_072);
            }
        }

        #[test]
        fn noise_ends(stream in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = expand(&stream, 4096);
            let _ = decompress(&stream, 4096, 4096);
        }
    }
}
