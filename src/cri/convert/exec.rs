//! Conversions of commands and their output.
//!
//! Invariant: an answer fits into a message, whatever the guest wrote.
//! Failure: [`Invalid`].

use std::time::Duration;

use cri_proto::{MAX_MESSAGE, v1};

use super::{Invalid, Result};
use crate::vm::exec::Output;

/// Longest command with its arguments, in bytes; Linux takes no longer argument than half of it.
const LONGEST_COMMAND: usize = 256 << 10;
/// What both streams may have of a message.
const ROOM: usize = MAX_MESSAGE - (64 << 10);
/// What standard error keeps of that at least.
const ROOM_OF_ERR: usize = 1 << 20;

/// A command and its arguments.
pub(in crate::cri) fn command(words: Vec<String>) -> Result<Vec<String>> {
    if words.first().is_none_or(String::is_empty) {
        return Err(Invalid::missing("cmd"));
    }
    let size: usize = words.iter().map(|word| word.len() + 1).sum();
    if size > LONGEST_COMMAND {
        let reason = format!("{size} bytes are more than {LONGEST_COMMAND}");
        return Err(Invalid::new("cmd", reason));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Invalid::new("cmd", "NUL is not allowed"));
    }
    Ok(words)
}

/// A time-out in seconds; none when it is not positive.
pub(in crate::cri) fn timeout(seconds: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok().filter(|s| *s > 0)?;
    Some(Duration::from_secs(
        seconds.min(super::container::LONGEST_GRACE),
    ))
}

/// What a command wrote, cut to what a message holds.
pub(in crate::cri) fn response(output: Output) -> v1::ExecSyncResponse {
    let Output { out, err, code } = output;
    let mut out = out.into_bytes();
    let mut err = err.into_bytes();
    err.truncate(ROOM_OF_ERR.max(ROOM.saturating_sub(out.len())));
    out.truncate(ROOM.saturating_sub(err.len()));
    v1::ExecSyncResponse {
        stdout: out,
        stderr: err,
        exit_code: code,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, 0)]
    #[case(16 << 20, 16 << 20)]
    #[case(16 << 20, 10)]
    #[case(10, 16 << 20)]
    fn an_answer_fits_into_a_message(#[case] out: usize, #[case] err: usize) {
        let answer = response(Output {
            out: vec![b'o'; out].into(),
            err: vec![b'e'; err].into(),
            code: -1,
        });
        assert!(answer.encoded_len() <= MAX_MESSAGE);
        assert!(answer.stderr.len() >= err.min(ROOM_OF_ERR));
        assert!(answer.stdout.len() >= out.min(ROOM - ROOM_OF_ERR));
    }

    #[rstest]
    #[case(&[], false)]
    #[case(&["", "x"], false)]
    #[case(&["sh", "-c", "echo\na"], true)]
    #[case(&["sh", "a\0b"], false)]
    fn a_command_is_anything_that_a_program_can_be_given(
        #[case] words: &[&str],
        #[case] good: bool,
    ) {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(command(words).is_ok(), good);
        assert!(command(vec!["x".repeat(LONGEST_COMMAND)]).is_err());
    }

    #[test]
    fn a_time_out_that_is_not_positive_is_none() {
        assert_eq!((timeout(0), timeout(-1)), (None, None));
        assert_eq!(timeout(2), Some(Duration::from_secs(2)));
        assert!(timeout(i64::MAX).is_some());
    }
}
