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
        start: number(start)?,
        total: number(total),
    })
}

pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    text(headers, &header::CONTENT_ENCODING).is_some_and(|e| !e.eq_ignore_ascii_case("identity"))
}

/// What the server says it has done to a body that was requested as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Nothing.
    Plain,
    /// It is a gzip file: compressed for the transfer, or stored so and labelled by its name.
    Gzip,
    /// Another one.
    Other,
}

pub(super) fn encoding(headers: &HeaderMap) -> Encoding {
    let text = text(headers, &header::CONTENT_ENCODING).unwrap_or_default();
    match text.to_ascii_lowercase().trim() {
        "gzip" | "x-gzip" => Encoding::Gzip,
        _ if is_encoded(headers) => Encoding::Other,
        _ => Encoding::Plain,
    }
}

pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    number(text(headers, &header::CONTENT_LENGTH)?)
}

/// Digits alone: the language's own reader takes a sign, too.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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

    /// Values that a server may send, right and nearly right.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            "bytes [0-9]{1,21}-[0-9]{1,21}/([0-9]{1,21}|\\*)",
            "(bytes )?[-+0-9*/ ]{0,12}",
            "[ -~]{0,40}",
            "[!-~]{600}",
            Just("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn a_range_is_what_the_specification_calls_one(value in value()) {
            let headers = headers(&[(header::CONTENT_RANGE, value.as_str()), (header::CONTENT_LENGTH, value.as_str())]);
            let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
            if let Some(range) = range(&headers) {
                let rest = value.strip_prefix("bytes ").unwrap();
                let (span, total) = rest.split_once('/').unwrap();
                let first = span.split('-').next().unwrap();
                prop_assert!(digits(first), "{}", value);
                prop_assert_eq!(range.start, first.parse::<u64>().unwrap());
                let expected = Some(total).filter(|total| digits(total));
                prop_assert_eq!(range.total, expected.and_then(|total| total.parse().ok()));
                prop_assert!(range.continues(range.start, range.total));
                prop_assert!(!range.continues(range.start ^ 1, None));
            }
            if let Some(length) = length(&headers) {
                prop_assert!(digits(&value), "{}", value);
                prop_assert_eq!(Ok(length), value.parse());
            }
        }

        #[test]
        fn validators_are_short_and_a_time_among_them_is_one(etag in value(), written in value(), sent in value()) {
            let headers = headers(&[
                (header::ETAG, etag.as_str()),
                (header::LAST_MODIFIED, written.as_str()),
                (header::DATE, sent.as_str()),
            ]);
            let read = validators(&headers);
            prop_assert_eq!(read.etag.is_some(), etag.len() <= LONGEST);
            prop_assert!(read.etag.is_none_or(|kept| kept == etag));
            if let Some(modified) = read.modified {
                prop_assert_eq!(&modified, &written);
                prop_assert!(httpdate::parse_http_date(&modified).is_ok() && modified.len() <= LONGEST);
            }
        }
    }
}
