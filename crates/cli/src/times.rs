//! Times in output: in the time zone of the caller (`TZ`, or the system's), in JSON as RFC 3339 in
//! UTC.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use sapwood::vfs::Timestamp;

use super::failure::{Failure, Result, USAGE};

/// Date and time in the caller's zone, to the nanosecond, and the offset of the zone.
pub(super) fn local(time: Timestamp) -> String {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    in_zone(time, ZONE.get_or_init(TimeZone::system))
}

/// Date and time in the caller's zone, to the second.
pub(super) fn local_seconds(time: Timestamp) -> String {
    let text = local(time);
    text.split('.').next().unwrap_or_default().to_owned()
}

fn in_zone(time: Timestamp, zone: &TimeZone) -> String {
    match jiff::Timestamp::new(time.sec, i32::try_from(time.nsec).unwrap_or(0)) {
        Ok(instant) => {
            let zoned = instant.to_zoned(zone.clone());
            zoned.strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string()
        }
        // An image can name any second; years of more than four digits have no zone.
        Err(_) => format!("{} +0000", utc(time, ' ')),
    }
}

/// Date and time in UTC, to the nanosecond, as RFC 3339 has it.
pub(super) fn json(time: Timestamp) -> String {
    format!("{}Z", utc(time, 'T'))
}

/// Reads a time that a user gives: `@SECONDS`, RFC 3339, or a date with or without a time in the
/// caller's zone.
///
/// # Errors
/// It is something else.
pub(super) fn parse(text: &str) -> Result<SystemTime, String> {
    let wrong = || {
        format!(
            "{text} is not a time, such as 2025-07-01T12:00:00Z, '2025-07-01 12:00' or @1751371200"
        )
    };
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        let whole: i64 = whole.parse().map_err(|_| wrong())?;
        let nanoseconds = if fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit()) {
            format!("{fraction:0<9}")
                .parse::<u32>()
                .map_err(|_| wrong())?
        } else {
            return Err(wrong());
        };
        let seconds = Duration::from_secs(whole.unsigned_abs());
        let time = if whole < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        };
        let time = time.and_then(|time| time.checked_add(Duration::from_nanos(nanoseconds.into())));
        return time.ok_or_else(wrong);
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time.into());
    }
    let local = text.parse::<jiff::civil::DateTime>().map_err(|_| wrong())?;
    let zoned = local.to_zoned(TimeZone::system()).map_err(|_| wrong())?;
    Ok(zoned.into())
}

fn utc(time: Timestamp, between: char) -> String {
    let days = time.sec.div_euclid(86_400);
    let second = time.sec.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}{between}{:02}:{:02}:{:02}.{:09}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        time.nsec
    )
}

/// Year, month and day of a count of days since 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years that begin in March put the leap day at the end; an era is 400 of them.
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The time in `SOURCE_DATE_EPOCH`, if it is set.
///
/// # Errors
/// It is no number of seconds.
pub(super) fn source_date_epoch() -> Result<Option<SystemTime>> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    let Some(text) = std::env::var_os(NAME).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let time = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    let why = || {
        Failure::new(
            USAGE,
            format_args!("{NAME}: {} makes no sense", text.display()),
        )
    };
    time.map(Some).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |sec| json(Timestamp { sec, nsec: 0 });
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(-1), "1969-12-31T23:59:59.000000000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000000000Z");
    }

    #[test]
    fn times_are_shown_in_a_zone() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |sec, nsec| in_zone(Timestamp { sec, nsec }, &zone);
        assert_eq!(at(0, 5), "1970-01-01 01:00:00.000000005 +0100");
        assert_eq!(at(1_751_328_000, 0), "2025-07-01 02:00:00.000000000 +0200");
        assert_eq!(at(-1, 999_999_999), "1970-01-01 00:59:59.999999999 +0100");
        for sec in [i64::MIN, i64::MAX] {
            assert!(at(sec, 0).ends_with(" +0000"));
        }
    }

    #[test]
    fn times_of_a_user_are_read() {
        let at = |text: &str| parse(text).map(|time| json(time.into()));
        let noon = Ok("2025-07-01T12:00:00.000000000Z".to_owned());
        assert_eq!(at("2025-07-01T12:00:00Z"), noon);
        assert_eq!(at("2025-07-01 14:00:00+02"), noon);
        assert_eq!(at("@1751371200"), noon);
        assert_eq!(
            at("@-1.25"),
            Ok("1969-12-31T23:59:59.250000000Z".to_owned())
        );
        for text in ["2025-07-01 12:00", "2025-07-01 12:00:30.5", "2025-07-01"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in ["", "@", "@x", "@1.x", "yesterday", "2025-13-01"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
