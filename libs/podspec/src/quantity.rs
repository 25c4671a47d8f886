//! Kubernetes quantities such as `500m`, `128Mi` or `2e3`.
//!
//! Invariant: the result is exact or rounded up to the next whole unit; nothing overflows silently.
//! Failure: [`QuantityError`] repeats the text and states what is wrong with it.

/// A text that is not a quantity, or one that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the form number plus suffix.
    #[error(
        "{0:?} is not a quantity: a number with one of the suffixes m k M G T P E Ki Mi Gi Ti Pi \
         Ei is"
    )]
    Malformed(String),
    /// More than fits in 64 bits.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// Longest text worth reading: the largest quantity with room for padding.
const MAX_LENGTH: usize = 40;

/// Parses a non-negative quantity into whole units, rounding up.
pub fn parse_quantity(text: &str) -> Result<u64, QuantityError> {
    let shown = || text.chars().take(MAX_LENGTH).collect::<String>();
    let malformed = || QuantityError::Malformed(shown());
    let too_large = || QuantityError::TooLarge(shown());
    if text.len() > MAX_LENGTH {
        return Err(malformed());
    }
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') {
        return Err(malformed());
    }
    let value: u128 = digits.parse().map_err(|_| too_large())?;
    let (factor, divisor) = scale(suffix).ok_or_else(malformed)?;
    let places = u32::try_from(fraction.len()).map_err(|_| malformed())?;
    let divisor = 10_u128
        .checked_pow(places)
        .and_then(|d| d.checked_mul(divisor));
    let divisor = divisor.ok_or_else(too_large)?;
    let units = value
        .checked_mul(factor)
        .ok_or_else(too_large)?
        .div_ceil(divisor);
    u64::try_from(units).map_err(|_| too_large())
}

/// Factor and divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let decimal = |power| Some((10_u128.pow(power), 1));
    let binary = |power: u32| Some((1_u128 << (10 * power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => exponent(suffix),
    }
}

fn exponent(suffix: &str) -> Option<(u128, u128)> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = digits.parse().ok()?;
    let scale = 10_u128.checked_pow(power.unsigned_abs())?;
    Some(if power < 0 { (1, scale) } else { (scale, 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", 0)]
    #[case("1", 1)]
    #[case("500m", 1)]
    #[case("1500m", 2)]
    #[case("128Mi", 134_217_728)]
    #[case("1.5Gi", 1_610_612_736)]
    #[case(".5k", 500)]
    #[case("2e3", 2000)]
    #[case("2E3", 2000)]
    #[case("5e-1", 1)]
    #[case("1E", 1_000_000_000_000_000_000)]
    #[case("15Ei", 17_293_822_569_102_704_640)]
    #[case("3000000001n", 4)]
    #[case("3000001u", 4)]
    #[case("2k", 2000)]
    #[case("2M", 2_000_000)]
    #[case("2G", 2_000_000_000)]
    #[case("2T", 2_000_000_000_000)]
    #[case("2P", 2_000_000_000_000_000)]
    #[case("2Ki", 2048)]
    #[case("2Gi", 2_147_483_648)]
    #[case("2Ti", 2_199_023_255_552)]
    #[case("2Pi", 2_251_799_813_685_248)]
    #[case("0000000000000000000000000000000000000001", 1)]
    fn quantities_have_kubernetes_meaning(#[case] text: &str, #[case] units: u64) {
        assert_eq!(parse_quantity(text), Ok(units));
    }

    #[rstest]
    #[case("")]
    #[case("-1")]
    #[case(" 1")]
    #[case("1 Mi")]
    #[case("Mi")]
    #[case("1.2.3")]
    #[case("1KiB")]
    #[case("0x10")]
    #[case("1e")]
    #[case("lots")]
    #[case("00000000000000000000000000000000000000001")]
    fn nonsense_is_malformed(#[case] text: &str) {
        let shown = text.chars().take(40).collect();
        assert_eq!(parse_quantity(text), Err(QuantityError::Malformed(shown)));
    }

    #[test]
    fn what_does_not_fit_is_too_large() {
        assert_eq!(
            parse_quantity("16Ei"),
            Err(QuantityError::TooLarge("16Ei".to_owned()))
        );
        assert!(parse_quantity("99999999999999999999999999999999999999").is_err());
        assert!(parse_quantity("1e39").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}") {
            let _ = parse_quantity(&text);
        }

        #[test]
        fn whole_numbers_are_themselves(n: u64) {
            prop_assert_eq!(parse_quantity(&n.to_string()), Ok(n));
        }
    }
}
