//! Guess whether data is worth compressing, from a sample of it.

/// Bytes looked at in one place.
const SAMPLE: usize = 16;
/// Distance of the places.
const STRIDE: usize = 256;

/// False if `data` looks like noise: its bytes are spread so evenly that no compression
/// would gain. Looks at one byte in sixteen.
pub(crate) fn worth_trying(data: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    let mut total = 0u32;
    for place in data.chunks(STRIDE) {
        for byte in place.iter().take(SAMPLE) {
            counts[usize::from(*byte)] += 1;
            total += 1;
        }
    }
    // Too few to judge.
    if total < 512 {
        return true;
    }
    let used = counts.iter().filter(|count| **count > 0).count();
    if used < 64 {
        return true;
    }
    entropy_bits(&counts, total) < 7.2
}

/// Shannon entropy in bits for each byte.
fn entropy_bits(counts: &[u32; 256], total: u32) -> f32 {
    let total = total as f32;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = *count as f32 / total;
            -share * share.log2()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_worth_it() {
        let text =
            b"It was a bright cold day in spring, and the clocks were striking. ".repeat(1000);
        assert!(worth_trying(&text));
        assert!(worth_trying(&[0; 100_000]));
        assert!(worth_trying(b"short"));
    }
}
