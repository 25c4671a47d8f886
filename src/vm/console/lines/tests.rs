//! Tests of the splitter.
//!
//! Invariant: what the header of the module guarantees, for any bytes in any portions.
//! Failure: a failed case prints its shrunken input.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

type Owned = (Tag, Vec<u8>);

/// Feeds portions one after the other as the daemon does: undecided bytes are met again.
fn records(portions: &[&[u8]], last: Rest) -> Vec<Owned> {
    let mut held = Vec::new();
    let mut open = false;
    let mut out = Vec::new();
    for (index, portion) in portions.iter().enumerate() {
        held.extend_from_slice(portion);
        let rest = if index + 1 == portions.len() {
            last
        } else {
            Rest::Hold
        };
        let mut lines = Lines::new(&held, open, rest);
        out.extend(lines.by_ref().map(|r| (r.tag, r.text.to_vec())));
        open = lines.line_open();
        held = lines.pending().to_vec();
    }
    out
}

fn reassemble(records: &[Owned]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, text) in records {
        bytes.extend_from_slice(text);
        if *tag == Tag::Full {
            bytes.push(b'\n');
        }
    }
    bytes
}

fn full(text: &[u8]) -> Owned {
    (Tag::Full, text.to_vec())
}

#[rstest]
#[case::two_lines(b"one\ntwo\n", vec![full(b"one"), full(b"two")])]
#[case::empty_line(b"\n\r\n", vec![full(b""), full(b"")])]
#[case::one_return_goes(b"a\r\r\n", vec![full(b"a\r")])]
#[case::inner_returns_stay(b"10%\r20%\n", vec![full(b"10%\r20%")])]
#[case::any_bytes_pass(b"\0\xff\x1b[m\n", vec![full(b"\0\xff\x1b[m")])]
#[case::unterminated(b"one\nrest", vec![full(b"one"), full(b"rest")])]
#[case::unterminated_return(b"rest\r", vec![full(b"rest\r")])]
#[case::nothing(b"", vec![])]
fn lines_end_at_newlines_and_at_the_end(#[case] bytes: &[u8], #[case] expected: Vec<Owned>) {
    assert_eq!(records(&[bytes], Rest::End), expected);
}

#[rstest]
#[case::fits(MAX_TEXT, "\n", &[MAX_TEXT])]
#[case::fits_with_return(MAX_TEXT, "\r\n", &[MAX_TEXT])]
#[case::one_more(MAX_TEXT + 1, "\n", &[MAX_TEXT, 1])]
#[case::one_more_with_return(MAX_TEXT + 1, "\r\n", &[MAX_TEXT, 1])]
#[case::twice(2 * MAX_TEXT, "\n", &[MAX_TEXT, MAX_TEXT])]
#[case::no_newline(2 * MAX_TEXT, "", &[MAX_TEXT, MAX_TEXT])]
#[case::ends_in_return(MAX_TEXT, "\r", &[MAX_TEXT, 1])]
fn a_long_line_is_cut_into_full_pieces(
    #[case] length: usize,
    #[case] end: &str,
    #[case] expected: &[usize],
) {
    let mut bytes = vec![b'x'; length];
    bytes.extend_from_slice(end.as_bytes());
    let got = records(&[&bytes], Rest::End);
    assert_eq!(
        got.iter().map(|(_, t)| t.len()).collect::<Vec<_>>(),
        expected
    );
    let (last, before) = got.split_last().unwrap();
    assert_eq!(last.0, Tag::Full);
    assert!(before.iter().all(|(tag, _)| *tag == Tag::Partial));
}

#[test]
fn a_prompt_is_shown_on_request_and_its_line_goes_on() {
    let mut lines = Lines::new(b"login: ", false, Rest::Flush);
    assert_eq!(
        lines.next(),
        Some(Record {
            tag: Tag::Partial,
            text: b"login: "
        })
    );
    assert_eq!(lines.next(), None);
    assert!(lines.line_open());
    let mut lines = Lines::new(b"root\r\n", true, Rest::Hold);
    assert_eq!(
        lines.next(),
        Some(Record {
            tag: Tag::Full,
            text: b"root"
        })
    );
    assert!(!lines.line_open());
}

#[test]
fn a_flush_leaves_a_return_for_its_newline() {
    let mut lines = Lines::new(b"login:\r", false, Rest::Flush);
    assert_eq!(
        lines.next(),
        Some(Record {
            tag: Tag::Partial,
            text: b"login:"
        })
    );
    assert_eq!((lines.next(), lines.pending()), (None, &b"\r"[..]));
    assert!(!lines.holds_text());
    let mut lines = Lines::new(b"\r\n", true, Rest::Hold);
    assert_eq!(
        lines.next(),
        Some(Record {
            tag: Tag::Full,
            text: b""
        })
    );
}

#[test]
fn the_end_closes_an_open_line_once() {
    let mut lines = Lines::new(b"", true, Rest::End);
    assert_eq!(
        lines.next(),
        Some(Record {
            tag: Tag::Full,
            text: b""
        })
    );
    assert_eq!(lines.next(), None);
}

/// Bytes with many newlines and returns, and runs near the limit.
fn console_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        2 => Just(b"\n".to_vec()),
        2 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => (MAX_TEXT - 3..MAX_TEXT + 4).prop_map(|n| vec![b'x'; n]),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|p| p.concat())
}

fn drop_returns_before_newlines(bytes: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for &byte in bytes {
        if byte == b'\n' && out.last() == Some(&b'\r') {
            out.pop();
        }
        out.push(byte);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn reassembled_records_are_the_input(bytes in console_bytes()) {
        let got = records(&[&bytes], Rest::End);
        let mut expected = drop_returns_before_newlines(&bytes);
        if expected.last().is_some_and(|&b| b != b'\n') {
            expected.push(b'\n');
        }
        prop_assert_eq!(reassemble(&got), expected);
        prop_assert!(got.iter().all(|(_, t)| t.len() <= MAX_TEXT && !t.contains(&b'\n')));
    }

    #[test]
    fn any_portions_give_the_same_records(
        bytes in console_bytes(),
        mut cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.drain(..).map(|c| c.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let portions: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
        prop_assert_eq!(records(&portions, Rest::End), records(&[&bytes], Rest::End));
    }

    #[test]
    fn flushes_at_any_time_lose_nothing(portions in proptest::collection::vec(console_bytes(), 0..5)) {
        let mut held = Vec::new();
        let mut open = false;
        let mut got = Vec::new();
        for portion in &portions {
            held.extend_from_slice(portion);
            let mut lines = Lines::new(&held, open, Rest::Flush);
            got.extend(lines.by_ref().map(|r| (r.tag, r.text.to_vec())));
            open = lines.line_open();
            held = lines.pending().to_vec();
            prop_assert!(held.is_empty() || held == b"\r");
        }
        let mut lines = Lines::new(&held, open, Rest::End);
        got.extend(lines.by_ref().map(|r| (r.tag, r.text.to_vec())));
        let mut expected = drop_returns_before_newlines(&portions.concat());
        if expected.last().is_some_and(|&b| b != b'\n') {
            expected.push(b'\n');
        }
        prop_assert_eq!(reassemble(&got), expected);
    }
}
