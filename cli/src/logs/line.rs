//! One line of a CRI log: `<time> <stream> <tags> <content>`.
//!
//! Invariant: content passes byte for byte; only the newline of a partial line is taken away.
//! Failure: none; what is not in this form passes whole.

/// Moves the complete lines of `pending` to `text`, without their prefixes. A line without end that
/// is longer than `max_line` counts as complete.
pub(crate) fn take_lines(pending: &mut Vec<u8>, max_line: usize, text: &mut Vec<u8>) {
    let mut start = 0;
    while let Some(length) = pending[start..].iter().position(|&b| b == b'\n') {
        let line = &pending[start..start + length];
        match parse(line) {
            Some(Line {
                content,
                partial: true,
            }) => text.extend_from_slice(content),
            Some(Line {
                content,
                partial: false,
            }) => {
                text.extend_from_slice(content);
                text.push(b'\n');
            }
            None => text.extend_from_slice(&pending[start..=start + length]),
        }
        start += length + 1;
    }
    pending.drain(..start);
    if pending.len() > max_line {
        text.append(pending);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    content: &'a [u8],
    /// The next line continues this one.
    partial: bool,
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |&b| b == b' ');
    let time = parts.next()?;
    let stream = parts.next()?;
    let tags = parts.next()?;
    let content = parts.next().unwrap_or_default();
    if !time.contains(&b'T') || !matches!(stream, b"stdout" | b"stderr") {
        return None;
    }
    let partial = match tags.split(|&b| b == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    Some(Line { content, partial })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(input: &[u8]) -> (String, String) {
        let mut pending = input.to_vec();
        let mut text = Vec::new();
        take_lines(&mut pending, 100, &mut text);
        (
            String::from_utf8_lossy(&text).into(),
            String::from_utf8_lossy(&pending).into(),
        )
    }

    #[test]
    fn prefixes_go_and_content_stays() {
        let line = b"2026-11-21T10:00:00.000000001Z stdout F  two  spaces \r\n";
        assert_eq!(taken(line).0, " two  spaces \r\n");
        assert_eq!(taken(b"2026-11-21T10:00:00Z stderr F \n").0, "\n");
        assert_eq!(taken(b"2026-11-21T10:00:00Z stdout F\n").0, "\n");
    }

    #[test]
    fn partial_lines_are_joined_also_with_further_tags() {
        let lines = b"1T1 stdout P a\n1T2 stdout P:x b\n1T3 stdout F:y c\n";
        assert_eq!(taken(lines).0, "abc\n");
    }

    #[test]
    fn what_is_not_in_the_form_passes_whole() {
        for line in [
            "plain text here now\n",
            "1T1 stdin F x\n",
            "1T1 stdout X x\n",
            "\n",
        ] {
            assert_eq!(taken(line.as_bytes()).0, line);
        }
    }

    #[test]
    fn an_unfinished_line_waits_unless_it_is_absurdly_long() {
        assert_eq!(
            taken(b"1T1 stdout F x\n1T2 std"),
            ("x\n".into(), "1T2 std".into())
        );
        let long = [b'x'; 101];
        assert_eq!(taken(&long), ("x".repeat(101), String::new()));
    }
}
