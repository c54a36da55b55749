//! Parses and formats durations and numbers, and lays out text tables.

use std::time::Duration;

/// Longest duration that any option takes.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Units with their length in seconds. A name that ends with another unit's name comes first.
const UNITS: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("m", 60.0), ("s", 1.0)];

/// Parses a duration such as `200ms`, `1.5s` or `2m`: above 0 and at most a day. The error says what is expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let span = duration_or_zero(text)?;
    if span.is_zero() { Err("expected a duration above 0".into()) } else { Ok(span) }
}

/// Parses a duration as [`duration()`] does, but accepts 0. The error says what is expected.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let expected =
        || "expected a number with its unit, ns, us, ms, s or m, such as 200ms, and at most 24 hours".to_owned();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, seconds)| text.strip_suffix(name).map(|number| (number, seconds)))
        .ok_or_else(expected)?;
    let seconds = number.trim().parse::<f64>().map_err(|_| expected())? * unit;
    let span = Duration::try_from_secs_f64(seconds).map_err(|_| expected())?;
    if span > LONGEST { Err(expected()) } else { Ok(span) }
}

/// Formats nanoseconds with three digits, in the unit that reads best: `12.3 ms`.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "µs"),
        ns => (ns, "ns"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats a number with three digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Converts a duration to nanoseconds, saturating at `u64::MAX`.
pub fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Lays out lines of cells. Each column is as wide as its widest cell: the first is left-aligned, the others right-aligned.
pub fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| lines.iter().filter_map(|line| Some(line.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration_or_zero("0"), Ok(Duration::ZERO));
        for wrong in ["", "5", "ms", "-1s", "NaNs", "infs", "1e30s", "25h", "0s", "0"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_three_digits() {
        let formatted = [0.0, 999.0, 1234.0, 12_345_678.0, 99_960_000.0, 3e9].map(time);
        assert_eq!(formatted, ["0 ns", "999 ns", "1.23 µs", "12.3 ms", "100 ms", "3.00 s"]);
    }

    #[test]
    fn columns_line_up() {
        let lines = [["model", "chars"], ["long name", "1"], ["x", "12345"]];
        let lines = lines.map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(table(&lines), "model      chars\nlong name      1\nx          12345\n");
    }
}
