//! Formats an error with all its causes on one line.
//!
//! Invariant: a line has no control characters and fits into a header.
//! Failure: none; what is too long is cut.

use std::error::Error;

/// Longest line in bytes: it may travel as a header, which clients bound.
const LONGEST: usize = 4096;

/// The error and its causes on one line. A cause that its error repeats is said once, and an answer
/// of an API server in its own words, without the library's.
pub fn one_line(error: &dyn Error) -> String {
    let mut before = String::new();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(answer) = answer(cause) {
            text = format!("{before}{answer}");
            break;
        }
        let reported = cause.to_string();
        if !text.ends_with(&reported) {
            before = format!("{text}: ");
            text = format!("{before}{reported}");
        }
        source = cause.source();
    }
    bounded(&text)
}

/// What the API server answered, if this is its answer. The error above it is the library's, whose
/// text is the answer's debug form.
#[cfg(feature = "kube-errors")]
fn answer(cause: &(dyn Error + 'static)) -> Option<String> {
    use kube::core::Status;
    let boxed = cause.downcast_ref::<Box<Status>>().map(|status| &**status);
    let status = boxed.or_else(|| cause.downcast_ref())?;
    Some(if status.message.is_empty() {
        format!("the API server answers {} {}", status.code, status.reason)
    } else {
        status.message.clone()
    })
}

#[cfg(not(feature = "kube-errors"))]
fn answer(_: &(dyn Error + 'static)) -> Option<String> {
    None
}

/// Without line breaks and other control characters, and short enough for a header.
pub fn bounded(text: &str) -> String {
    let words: Vec<_> = text
        .split(|c: char| c.is_control() || c == ' ')
        .filter(|word| !word.is_empty())
        .collect();
    let mut line = words.join(" ");
    if line.len() > LONGEST {
        line.truncate(line.floor_char_boundary(LONGEST));
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("create pod {name}")]
    struct CreatePod {
        name: &'static str,
        #[source]
        source: Library,
    }

    /// As the library's errors are: its text has the debug form, and its source the answer again.
    #[derive(Debug, thiserror::Error)]
    #[error("ApiError: {0} ({0:?})")]
    struct Library(#[source] Box<kube::core::Status>);

    fn refused(message: &str) -> Library {
        Library(Box::new(
            kube::core::Status::failure(message, "Forbidden").with_code(403),
        ))
    }

    #[test]
    fn an_answer_of_an_api_server_is_said_once_in_its_words() {
        let quota =
            "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, limited: pods=0";
        let error = CreatePod {
            name: "a",
            source: refused(quota),
        };
        assert_eq!(one_line(&error), format!("create pod a: {quota}"));
        assert_eq!(one_line(&refused(quota)), quota);
        assert_eq!(
            one_line(&refused("")),
            "the API server answers 403 Forbidden"
        );
    }

    #[test]
    fn long_messages_fit_into_a_header() {
        let text = bounded(&"ä".repeat(10_000));
        assert!(text.len() <= LONGEST + '…'.len_utf8());
        assert!(text.ends_with('…'));
    }
}
