//! `node logs`: the console log of a pod of this node.
//!
//! Invariant: the newest container's log, from its beginning.
//! Failure: no container yet, or a log that cannot be read from here.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tokio::io::AsyncWriteExt;

use crate::context::Endpoint;
use crate::logs::{LogError, LogReader, follow};
use crate::pods::{self, PodArg};

/// Pod whose log to print.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pod: PodArg,
    /// Follow the log until the VM ends.
    #[arg(short, long)]
    follow: bool,
    /// Print only the last lines of the log; with --follow, then what is added.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let pod = pods::find(&runtime, &args.pod).await?;
    let container = pod
        .container()
        .with_context(|| format!("pod {} has no container, and so no log", pod.name()))?;
    let status = runtime.container_status(&container.id, false).await?.status;
    let path = status.map(|s| s.log_path).filter(|path| !path.is_empty());
    let path = path.with_context(|| format!("pod {} was made without a log", pod.name()))?;
    let mut reader = LogReader::new(path);
    let mut out = tokio::io::stdout();
    if let Some(lines) = args.tail {
        let mut text = Vec::new();
        while reader.pump(&mut text).await? {
            let rest = last_lines(&text, lines).to_vec();
            text = rest;
        }
        out.write_all(&text).await.map_err(LogError::Print)?;
        out.flush().await.map_err(LogError::Print)?;
    }
    if args.follow {
        follow(&runtime, &container.id, reader, &mut out).await?;
    } else {
        while reader.pump(&mut out).await? {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The end of a text: so many lines, the last of which may be unfinished.
fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let Some(before) = lines.checked_sub(1) else {
        return &[];
    };
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let newlines = body.iter().enumerate().rev();
    let mut newlines = newlines.filter(|(_, byte)| **byte == b'\n');
    let start = newlines.nth(before).map_or(0, |(at, _)| at + 1);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_has_whole_lines_and_at_most_so_many() {
        let tail = |text: &str, lines| {
            String::from_utf8(last_lines(text.as_bytes(), lines).to_vec()).unwrap()
        };
        assert_eq!(tail("a\nb\nc\n", 1), "c\n");
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a\nb\n", 9), "a\nb\n");
        assert_eq!(tail("a\nb\n", 0), "");
        assert_eq!(tail("", 3), "");
    }
}
