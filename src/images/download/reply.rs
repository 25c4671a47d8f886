//! Reads the headers of a reply about its body.
//!
//! Invariant: a time is only taken as a validator if the file was at rest for a while before it was
//! sent.
//! Failure: anything malformed counts as absent.

use reqwest::header::{self, HeaderMap, HeaderName};

use super::super::partial::Validators;

/// A file that changed less than this before it was sent may change again within the same second.
const AT_REST: std::time::Duration = std::time::Duration::from_secs(2);
/// Longer validators are not worth keeping.
const LONGEST: usize = 512;

/// `bytes <start>-<end>/<total>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) total: Option<u64>,
}

impl Range {
    /// Whether the body begins at byte `from` of a file of `total` bytes.
    pub(super) fn continues(self, from: u64, total: Option<u64>) -> bool {
        let same_size = self.total.is_none() || total.is_none() || self.total == total;
        self.start == from && same_size
    }
}

pub(super) fn validators(headers: &HeaderMap) -> Validators {
    let short = |text: &&str| text.len() <= LONGEST;
    Validators {
        etag: text(headers, &header::ETAG)
            .filter(short)
            .map(str::to_owned),
        modified: modified(headers).map(str::to_owned),
    }
}

fn modified(headers: &HeaderMap) -> Option<&str> {
    let written = text(headers, &header::LAST_MODIFIED)?;
    let sent = httpdate::parse_http_date(text(headers, &header::DATE)?).ok()?;
    let age = sent.duration_since(httpdate::parse_http_date(written).ok()?);
    age.is_ok_and(|age| age >= AT_REST).then_some(written)
}

pub(super) fn range(headers: &HeaderMap) -> Option<Range> {
    let text = text(headers, &header::CONTENT_RANGE)?;
    let (span, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = span.split_once('-')?;
    Some(Range {
        start: start.parse().ok()?,
        total: total.parse().ok(),
    })
}

pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    text(headers, &header::CONTENT_ENCODING).is_some_and(|e| !e.eq_ignore_ascii_case("identity"))
}

pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, &header::CONTENT_LENGTH)?.parse().ok()
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let parse = |(name, value): &(HeaderName, &str)| (name.clone(), value.parse().unwrap());
        pairs.iter().map(parse).collect()
    }

    #[rstest]
    #[case::whole("bytes 5-9/10", Some(Range { start: 5, total: Some(10) }))]
    #[case::unknown_total("bytes 5-9/*", Some(Range { start: 5, total: None }))]
    #[case::no_unit("5-9/10", None)]
    #[case::unsatisfied("bytes */10", None)]
    #[case::negative("bytes -5-9/10", None)]
    fn ranges_are_read(#[case] value: &str, #[case] expected: Option<Range>) {
        assert_eq!(range(&headers(&[(header::CONTENT_RANGE, value)])), expected);
    }

    #[rstest]
    #[case::at_rest("Sun, 06 Nov 1994 08:49:37 GMT", true)]
    #[case::just_written("Sun, 06 Nov 1994 08:49:38 GMT", false)]
    #[case::from_the_future("Sun, 06 Nov 1994 08:50:00 GMT", false)]
    #[case::garbage("yesterday", false)]
    fn a_time_is_a_validator_only_for_a_file_at_rest(#[case] written: &str, #[case] taken: bool) {
        let headers = headers(&[
            (header::LAST_MODIFIED, written),
            (header::DATE, "Sun, 06 Nov 1994 08:49:39 GMT"),
        ]);
        assert_eq!(validators(&headers).modified.is_some(), taken);
    }
}
