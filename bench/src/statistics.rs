//! Medians, and ratios with their confidence.
//!
//! A ratio of two contestants is computed from one ratio per round. The logarithms of these are
//! assumed to have a normal distribution; the interval is Student's t at 95 %. With three rounds it
//! is wide, as it should be.

/// Median, least and greatest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The median; for an even number of values, the mean of the two in the middle.
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = values.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let half = all.len() / 2;
        let median = if all.len().is_multiple_of(2) {
            f64::midpoint(all[half - 1], all[half])
        } else {
            all[half]
        };
        Some(Self { median, min, max })
    }
}

/// How many times as good one contestant is as another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// Geometric mean over the rounds.
    pub(crate) value: f64,
    /// Lower end of the 95 % interval.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

/// An interval with ends further apart than this allows no statement if 1 lies between them.
const WIDEST_AROUND_ONE: f64 = 1.5;
/// An interval with ends further apart than this allows only a statement which of the two is
/// better.
const WIDEST: f64 = 4.0;

impl Ratio {
    /// From pairs (one, other) of the same round. `None` for less than two pairs, or for values
    /// that are not positive.
    pub(crate) fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
        if logs.len() < 2 || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let half = student_95(logs.len() - 1) * (squares / (n - 1.0) / n).sqrt();
        Some(Self {
            value: mean.exp(),
            low: (mean - half).exp(),
            high: (mean + half).exp(),
        })
    }

    /// True if the interval allows a statement which of the two is better, or that they are equal.
    pub(crate) fn is_clear(&self) -> bool {
        !(self.low < 1.0 && self.high > 1.0) || self.high / self.low <= WIDEST_AROUND_ONE
    }

    /// For a table: `1.82 [1.60, 2.07]`, or the part that the interval allows.
    pub(crate) fn to_text(self) -> String {
        let Self { value, low, high } = self;
        if !self.is_clear() && high / low > 100.0 {
            // The ends of an interval this wide are useless.
            "too noisy".to_owned()
        } else if !self.is_clear() {
            format!("too noisy [{low:.2}, {high:.2}]")
        } else if high / low <= WIDEST {
            format!("{value:.2} [{low:.2}, {high:.2}]")
        } else if low >= 1.0 {
            format!("at least {low:.2}")
        } else {
            format!("at most {high:.2}")
        }
    }
}

/// Two-sided 95 % quantile of Student's t.
fn student_95(freedom: usize) -> f64 {
    const TABLE: [f64; 15] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131,
    ];
    let found = freedom.checked_sub(1).and_then(|at| TABLE.get(at));
    // For more values than the table has, a little more than the exact quantile.
    found.copied().unwrap_or(2.12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_odd_and_even_numbers_of_values() {
        let odd = Spread::of([3.0, 1.0, 10.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 10.0));
        assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn an_interval_is_as_known_from_tables() {
        let equal = Ratio::of(&[(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]).unwrap();
        assert_eq!(equal.to_text(), "2.00 [2.00, 2.00]");
        // Logarithms 0, 0.1, 0.2: mean 0.1, standard error 0.1 / sqrt(3).
        let pairs = [(1.0, 1.0), (0.1f64.exp(), 1.0), (0.2f64.exp(), 1.0)];
        let ratio = Ratio::of(&pairs).unwrap();
        let half = 4.303 * 0.1 / 3f64.sqrt();
        assert!((ratio.low.ln() - (0.1 - half)).abs() < 1e-9);
        assert!((ratio.high.ln() - (0.1 + half)).abs() < 1e-9);
    }

    #[test]
    fn a_noisy_ratio_is_not_stated() {
        let text = |pairs: &[(f64, f64)]| Ratio::of(pairs).unwrap().to_text();
        let noisy = text(&[(1.0, 1.0), (2.0, 1.0), (1.0, 2.0)]);
        assert!(noisy.starts_with("too noisy"), "{noisy}");
        let clear = text(&[(10.0, 1.0), (20.0, 1.0), (40.0, 1.0)]);
        assert!(clear.starts_with("at least 3."), "{clear}");
        let against = text(&[(1.0, 10.0), (1.0, 20.0), (1.0, 40.0)]);
        assert!(against.starts_with("at most 0.2"), "{against}");
        assert_eq!(Ratio::of(&[(1.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(1.0, 0.0), (1.0, 1.0)]), None);
    }
}
