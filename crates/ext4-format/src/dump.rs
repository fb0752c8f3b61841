//! Readable dumps, in the wording and order of `dumpe2fs` and `debugfs`, so that they can be
//! compared line by line. Times are in UTC.

mod group;
mod inode;
mod superblock;

pub use group::DumpGroup;
pub use inode::DumpInode;
pub use superblock::DumpSuper;

/// Seconds since 1970 as date and time.
struct Date(i64);

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (day, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let (year, month, day) = civil(day);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years begin in March here, so that the leap day is the last of its year.
fn civil(day: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097; // days of 400 years
    // 719_468 days from 0000-03-01 to 1970-01-01.
    let day = day.saturating_add(719_468);
    let (era, day) = (day.div_euclid(ERA), day.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (year, calendar_month) = if month < 10 {
        (year, month + 3)
    } else {
        (year + 1, month - 9)
    };
    (era * 400 + year, calendar_month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_seconds() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_304_257, "2026-11-21 23:37:37 UTC"),
            (i64::from(i32::MIN), "1901-12-13 20:45:52 UTC"),
            (i64::from(i32::MAX), "2038-01-19 03:14:07 UTC"),
            (i64::from(i32::MAX) + (3 << 32), "2446-05-10 22:38:55 UTC"),
        ] {
            assert_eq!(Date(seconds).to_string(), text);
        }
    }

    #[test]
    fn any_second_has_a_date() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(!Date(seconds).to_string().is_empty());
        }
    }
}
