//! Numbers for people, at most five characters.

/// Bytes in powers of 1024: `999`, `1.0K`, `12M`.
pub(crate) fn bytes(number: u64) -> String {
    scaled(number, 1024, ["", "K", "M", "G", "T", "P", "E"])
}

/// Counts in powers of 1000: `999`, `1.0k`, `12M`.
pub(crate) fn count(number: u64) -> String {
    scaled(number, 1000, ["", "k", "M", "G", "T", "P", "E"])
}

/// Rounds down, so that nothing looks like more than it is.
fn scaled(number: u64, base: u64, units: [&str; 7]) -> String {
    let mut unit = 0;
    let mut divisor = 1;
    while number / divisor >= base {
        divisor *= base;
        unit += 1;
    }
    let whole = number / divisor;
    if unit == 0 || whole >= 10 {
        return format!("{whole}{}", units[unit]);
    }
    let tenth = u128::from(number % divisor) * 10 / u128::from(divisor);
    format!("{whole}.{tenth}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::{bytes, count};

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0, "0", "0"),
            (999, "999", "999"),
            (1000, "1000", "1.0k"),
            (1023, "1023", "1.0k"),
            (1024, "1.0K", "1.0k"),
            (1999, "1.9K", "1.9k"),
            (10_239, "9.9K", "10k"),
            (10_240, "10K", "10k"),
            (999_999, "976K", "999k"),
            (1 << 20, "1.0M", "1.0M"),
            (u64::MAX, "15E", "18E"),
        ];
        for (number, as_bytes, as_count) in cases {
            assert_eq!((bytes(number).as_str(), count(number).as_str()), (as_bytes, as_count));
        }
    }
}
