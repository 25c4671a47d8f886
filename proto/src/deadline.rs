//! How long the caller of a method waits.
//!
//! Invariant: none; the header is a client's.
//! Failure: `None` for a header that is absent or has no meaning: the call has no deadline then.

use std::time::Duration;

use tonic::codegen::http::HeaderMap;

/// The timeout in the header `grpc-timeout`.
#[must_use]
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}
