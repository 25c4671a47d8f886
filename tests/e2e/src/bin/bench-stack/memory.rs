//! Resident memory of the stack's programs.
//!
//! Invariant: what the kernel calls VmRSS, program text included.
//! Failure: a program that does not run is named.

use anyhow::{Context, Result};

use crate::samples::Samples;
use e2e::bench::Stack;

/// Programs and the names of their samples.
const PROGRAMS: [(&str, &str); 3] = [
    ("vmlet", "rss_vmlet"),
    ("vmlet-tapmanager", "rss_tapmanager"),
    ("libvirtd", "rss_libvirtd"),
];

/// Takes a sample before and while `count` machines run.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let mut samples = Samples::default();
    // Memory that programs take once, for the first machine, is not a cost per machine.
    let (first, _) = stack.boot(&cri, &stack.pod("memory-first")).await?;
    stack.remove(&cri, &first.sandbox).await?;
    sample(stack, &mut samples)?;
    let mut booted = Vec::new();
    for number in 0..count {
        let pod = stack.pod(&format!("memory-{number}"));
        booted.push(stack.boot(&cri, &pod).await?.0);
    }
    sample(stack, &mut samples)?;
    for pod in booted {
        stack.remove(&cri, &pod.sandbox).await?;
    }
    Ok(samples)
}

/// Takes one sample of each program, in KiB.
pub(crate) fn sample(stack: &Stack, samples: &mut Samples) -> Result<()> {
    for (program, name) in PROGRAMS {
        let file = format!("/proc/{}/status", stack.pid(program)?);
        let status =
            std::fs::read_to_string(&file).with_context(|| format!("{program} does not run"))?;
        let resident = kib(&status, "VmRSS:").with_context(|| file.clone())?;
        samples.number(name, resident);
        if program == "vmlet" {
            let own = kib(&status, "RssAnon:").with_context(|| file.clone())?;
            samples.number("anonymous_vmlet", own);
        }
    }
    Ok(())
}

fn kib(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::kib;

    #[test]
    fn resident_memory_is_read_from_proc_status() {
        let status = "Name:\tvmlet\nVmPeak:\t  99 kB\nVmRSS:\t   12345 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(kib(status, "VmRSS:"), Some(12345.0));
        assert_eq!(kib("Name:\tkthreadd\n", "VmRSS:"), None);
    }
}
