//! Medians, and ratios with their confidence.
//!
//! A ratio of two contestants is computed from one ratio per round. The logarithms of these are
//! assumed to have a normal distribution; the interval is Student's t at 95 %. With three
//! rounds it is wide, as it should be.

use serde::Serialize;

/// Median, least and greatest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median; of an even number of values the mean of the two in the middle.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = values.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let half = all.len() / 2;
        let high = *all.get(half)?;
        let median = match all.len() % 2 {
            0 => f64::midpoint(*all.get(half - 1)?, high),
            _ => high,
        };
        Some(Self { median, min, max })
    }
}

/// How many times as good one contestant is as another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Geometric mean over the rounds.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// An interval with ends further apart than this allows no statement if 1 lies between them.
const WIDEST_AROUND_ONE: f64 = 1.5;
/// An interval with ends further apart than this allows only a statement which of the two is
/// better.
const WIDEST: f64 = 4.0;

impl Ratio {
    /// From pairs (one, other) of the same round. `None` for less than two pairs, or for values
    /// that are not positive.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
        if logs.len() < 2 || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        let half = student_95(logs.len() - 1) * error;
        Some(Self {
            value: mean.exp(),
            low: (mean - half).exp(),
            high: (mean + half).exp(),
        })
    }

    /// The statement that its interval allows.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let width = self.high / self.low;
        if self.low < 1.0 && self.high > 1.0 {
            if width <= WIDEST_AROUND_ONE {
                Verdict::Value
            } else {
                Verdict::Nothing
            }
        } else if width <= WIDEST {
            Verdict::Value
        } else {
            Verdict::Bound
        }
    }

    /// For a table: `1.82 [1.60, 2.07]`, or the part that the interval allows.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self { value, low, high } = self;
        match self.verdict() {
            Verdict::Value => format!("{value:.2} [{low:.2}, {high:.2}]"),
            Verdict::Bound if *low >= 1.0 => format!("at least {low:.2}"),
            Verdict::Bound => format!("at most {high:.2}"),
            // The ends of an interval this wide are useless.
            Verdict::Nothing if high / low > 100.0 => "too noisy".to_owned(),
            Verdict::Nothing => format!("too noisy [{low:.2}, {high:.2}]"),
        }
    }
}

/// The statement that a ratio allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its value.
    Value,
    /// Which of the two is better, and at least by how much.
    Bound,
    /// None.
    Nothing,
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
    fn a_ratio_of_equal_pairs_has_no_width() {
        let ratio = Ratio::of(&[(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]).unwrap();
        assert!((ratio.value - 2.0).abs() < 1e-9);
        assert!((ratio.high - ratio.low).abs() < 1e-9);
        assert_eq!(ratio.verdict(), Verdict::Value);
        assert_eq!(ratio.to_text(), "2.00 [2.00, 2.00]");
    }

    #[test]
    fn an_interval_is_as_known_from_tables() {
        // Logarithms 0, 0.1, 0.2: mean 0.1, standard error 0.1 / sqrt(3).
        let pairs = [(1.0, 1.0), (0.1f64.exp(), 1.0), (0.2f64.exp(), 1.0)];
        let ratio = Ratio::of(&pairs).unwrap();
        let half = 4.303 * 0.1 / 3f64.sqrt();
        assert!((ratio.low.ln() - (0.1 - half)).abs() < 1e-9);
        assert!((ratio.high.ln() - (0.1 + half)).abs() < 1e-9);
    }

    #[test]
    fn a_noisy_ratio_is_not_stated() {
        let noisy = Ratio::of(&[(1.0, 1.0), (2.0, 1.0), (1.0, 2.0)]).unwrap();
        assert_eq!(noisy.verdict(), Verdict::Nothing);
        assert!(noisy.to_text().starts_with("too noisy"));
        let clear = Ratio::of(&[(10.0, 1.0), (20.0, 1.0), (40.0, 1.0)]).unwrap();
        assert_eq!(clear.verdict(), Verdict::Bound);
        assert!(clear.to_text().starts_with("at least 3."), "{clear:?}");
        let against = Ratio::of(&[(1.0, 10.0), (1.0, 20.0), (1.0, 40.0)]).unwrap();
        assert!(against.to_text().starts_with("at most 0.2"), "{against:?}");
        assert_eq!(Ratio::of(&[(1.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(1.0, 0.0), (1.0, 1.0)]), None);
    }
}
