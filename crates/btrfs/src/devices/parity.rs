//! Elements rebuilt from the parity of RAID5 and RAID6. No I/O.
//!
//! P is the sum of a row's elements. Q is the sum of the elements, element `n` times 2 to the power
//! of `n`. Both are computed byte by byte in the field of 256 elements with the polynomial 0x11d.

/// The field's polynomial, without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// A product in the field.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    product
}

/// The generator to the power of `n`.
fn power(n: usize) -> u8 {
    // The powers repeat after 255.
    (0..n % 255).fold(1, |power, _| times(power, 2))
}

/// The inverse of an element that is not 0.
fn inverse(a: u8) -> u8 {
    // The 255th power is 1.
    (0..253).fold(a, |power, _| times(power, a))
}

/// Adds `factor` times `bytes` to `sum`.
fn add(sum: &mut [u8], bytes: &[u8], factor: u8) {
    let mut table = [0; 256];
    for (value, product) in (0..=u8::MAX).zip(&mut table) {
        *product = times(value, factor);
    }
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= table.get(usize::from(*byte)).copied().unwrap_or(0);
    }
}

/// Rebuilds element `wanted` of a row. `data`: the row's elements, `None` for one that is lost; the
/// bytes of `wanted` are not used. `None` if the parities that are there do not suffice.
pub(crate) fn rebuild(
    wanted: usize,
    data: &[Option<Vec<u8>>],
    p: Option<Vec<u8>>,
    q: Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let others = || data.iter().enumerate().filter(|(nth, _)| *nth != wanted);
    let mut lost = others().filter(|(_, bytes)| bytes.is_none());
    let second = lost.next().map(|(nth, _)| nth);
    if lost.next().is_some() {
        return None;
    }
    // A parity minus the elements that are present.
    let rest = |mut parity: Vec<u8>, factor: &dyn Fn(usize) -> u8| {
        for (nth, bytes) in others() {
            add(
                &mut parity,
                bytes.as_deref().unwrap_or_default(),
                factor(nth),
            );
        }
        parity
    };
    let p = p.map(|p| rest(p, &|_| 1));
    let q = q.map(|q| rest(q, &power));
    match (second, p, q) {
        (None, Some(p), _) => Some(p),
        (None, None, Some(q)) => Some(scaled(&q, inverse(power(wanted)))),
        // p = wanted + second; q = wanted * power(wanted) + second * power(second).
        (Some(second), Some(p), Some(mut q)) => {
            add(&mut q, &p, power(second));
            Some(scaled(&q, inverse(power(wanted) ^ power(second))))
        }
        _ => None,
    }
}

fn scaled(bytes: &[u8], factor: u8) -> Vec<u8> {
    let mut product = vec![0; bytes.len()];
    add(&mut product, bytes, factor);
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_field() {
        assert_eq!(times(0x80, 2), 0x1d);
        assert_eq!(times(0x53, 0xca), 0x8f);
        assert_eq!((power(0), power(1), power(8), power(255)), (1, 2, 0x1d, 1));
        for a in 1..=255 {
            assert_eq!(times(a, inverse(a)), 1, "{a}");
        }
    }

    #[test]
    fn any_two_lost_elements_are_rebuilt() {
        let mut rng = fastrand::Rng::with_seed(7);
        let count = 7;
        let data: Vec<Vec<u8>> = (0..count)
            .map(|_| std::iter::repeat_with(|| rng.u8(..)).take(33).collect())
            .collect();
        let (mut p, mut q) = (vec![0; 33], vec![0; 33]);
        for (nth, bytes) in data.iter().enumerate() {
            add(&mut p, bytes, 1);
            add(&mut q, bytes, power(nth));
        }
        for wanted in 0..count {
            let without = |second: usize| -> Vec<Option<Vec<u8>>> {
                let there = |nth: usize| nth != wanted && nth != second;
                let each = data.iter().enumerate();
                each.map(|(nth, bytes)| there(nth).then(|| bytes.clone()))
                    .collect()
            };
            let alone = without(wanted);
            let right = Some(data[wanted].clone());
            assert_eq!(rebuild(wanted, &alone, Some(p.clone()), None), right);
            assert_eq!(rebuild(wanted, &alone, None, Some(q.clone())), right);
            assert_eq!(rebuild(wanted, &alone, None, None), None);
            for second in (0..count).filter(|second| *second != wanted) {
                let two = without(second);
                let (p, q) = (Some(p.clone()), Some(q.clone()));
                assert_eq!(rebuild(wanted, &two, p.clone(), None), None);
                assert_eq!(rebuild(wanted, &two, p, q), right);
            }
        }
    }
}
