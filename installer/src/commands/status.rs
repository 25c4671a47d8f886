//! `status`: what is installed, and whether it works.
//!
//! Invariant: it changes nothing.
//! Failure: exit code 1 when anything is not as it should be, with a line for each.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::Node;
use crate::args;
use crate::platform;
use crate::proxy;

/// Longest wait for systemctl.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &args::Status) -> Result<ExitCode> {
    let node = Node::new(&args.node, TIMEOUT)?;
    let state = node.journal.state();
    let Some(target) = state.target() else {
        println!("installed  no");
        return Ok(ExitCode::FAILURE);
    };
    let mut is_well = true;
    let mut line = |name: &str, value: Result<String>| match value {
        Ok(value) => println!("{name:<10} {value}"),
        Err(error) => {
            println!("{name:<10} {error:#}");
            is_well = false;
        }
    };
    let finished = match state.unfinished {
        None => Ok("yes".to_owned()),
        Some(_) => Err(anyhow::anyhow!(
            "an operation was not finished: repeat install or withdraw"
        )),
    };
    line("installed", finished);
    let platform = platform::title(target.platform);
    line("platform", Ok(format!("{platform}, {}", target.service)));
    line("runtime", Ok(target.primary.display().to_string()));
    for (path, file) in &state.files {
        let shown = path.display();
        let current = node.root.read(path)?;
        let is_ours = current.as_ref().map(|content| file.is_ours(content));
        line(
            "file",
            Ok(match is_ours {
                Some(true) => format!("{shown}"),
                Some(false) => format!("{shown}, changed since the installation"),
                None => format!("{shown}, removed since the installation"),
            }),
        );
    }
    let facts = node.facts(&target.service)?;
    let proxy = if !facts.is_enabled {
        Err(anyhow::anyhow!("{} is not enabled", proxy::UNIT))
    } else if !facts.is_active {
        Err(anyhow::anyhow!("{} is not active", proxy::UNIT))
    } else {
        Ok(format!("{} is enabled and active", proxy::UNIT))
    };
    line("proxy", proxy);
    line(
        "kubelet",
        node.health.kubelet().map(|()| "healthy".to_owned()),
    );
    let connected = if facts.is_used {
        Ok("something is connected to the proxy".to_owned())
    } else {
        Err(anyhow::anyhow!("nothing is connected to the proxy"))
    };
    line("connected", connected);
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
