//! Measures the time until user data of Debian have run, and what its guest reads of a share, with
//! and without Vmlet.
//!
//! Invariant: as in [`trial`](crate::trial). The machine that is started by hand has QEMU's own
//! limit of translated code. The guest's cache is dropped before each of its reads.
//! Failure: a guest that does not come so far, with what QEMU reported.

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;

use crate::samples::Samples;
use crate::trial::{Awaited, Seen, both};

const MARKER: &str = "BENCH-USER-DATA";
const END: &str = "BENCH-END";
/// Begins a line with the nanoseconds of a read.
const READ: &str = "BENCH-READ ";
/// Bytes that the guest reads.
const SIZE: u32 = 256 << 20;
const READS: usize = 3;

/// `count` runs of each kind.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let data = stack.path("shared-with-guest");
    std::fs::create_dir(&data)?;
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(usize::try_from(SIZE)?)
        .collect();
    std::fs::write(data.join("large"), bytes)?;
    let mut samples = Samples::default();
    let script = format!(
        "exec >/dev/console; echo {MARKER}; for n in $(seq {READS}); do sync; \
         echo 3 >/proc/sys/vm/drop_caches; t=$(date +%s%N); \
         dd if=/srv/data/large of=/dev/null bs=1M 2>/dev/null; \
         echo {READ}$(($(date +%s%N) - t)); done; echo {END}"
    );
    let user_data = format!("ssh_genkeytypes: [ed25519]\nruncmd:\n- [sh, -c, '{script}']\n");
    for number in 0..=count {
        let mut pod = stack.pod(&format!("marker-{number}"));
        pod.memory_mib = Some(1024);
        pod.writable = vec![(data.clone(), "/srv/data".to_owned())];
        for (key, value) in [
            ("vcpu-count", "2"),
            ("guest-agent", "off"),
            ("cloud-init-user-data", &user_data),
        ] {
            let key = format!("vmlet.dev/{key}");
            pod.annotations.insert(key, value.to_owned());
        }
        let awaited = Awaited::Texts([MARKER, END]);
        let (ours, by_hand) = both(stack, &cri, &pod, &awaited).await?;
        if number > 0 {
            for (side, seen) in [("vmlet", ours), ("by_hand", by_hand)] {
                samples.time(format!("marker_{side}"), seen.after);
                for pace in paces(&seen)? {
                    samples.number(format!("share_{side}"), pace);
                }
            }
        }
    }
    std::fs::remove_dir_all(&data)?;
    Ok(samples)
}

/// Megabytes in a second of each read.
fn paces(seen: &Seen) -> Result<Vec<f64>> {
    let lines = seen.console.lines();
    let times = lines.filter_map(|line| line.split_once(READ));
    let paces: Vec<f64> = times
        .map(|(_, text)| -> Result<f64> {
            let nanoseconds: f64 = text.trim().parse().with_context(|| text.to_owned())?;
            Ok(f64::from(SIZE) * 1e3 / nanoseconds)
        })
        .collect::<Result<_>>()?;
    ensure!(paces.len() == READS, "{}", seen.console);
    Ok(paces)
}
