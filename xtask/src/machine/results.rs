//! What a run leaves: journal, kernel messages, units, AppArmor, and the logs of libvirt.
//!
//! Invariant: it is collected whether the steps succeeded or not, and changes nothing in the
//! machine but a file below `/var/tmp`.
//! Failure: what the machine does not have is missing; a machine that does not answer is an error.

use std::path::Path;

use anyhow::{Context, Result};

use super::PATIENCE;
use super::agent::Agent;

const ARCHIVE: &str = "/var/tmp/results.tar";

/// Writes all results into one archive.
const COLLECT: &str = r"
rm -rf /var/tmp/results /var/tmp/results.tar
mkdir -p /var/tmp/results
cd /var/tmp/results
{
    journalctl --boot --output=short-precise --no-hostname >journal.log
    dmesg >dmesg.log
    systemctl list-units --all --no-pager >units.txt
    systemd-cgls --no-pager >cgroups.txt
    aa-status >apparmor.txt
    ps -eo pid,ppid,user,lsm,cgroup,args >processes.txt
    ip -details address >links.txt
    mount >mounts.txt
    cp -r /var/log/libvirt libvirt
    cp -r /var/log/pods pods
} 2>/dev/null
tar -cf /var/tmp/results.tar .
";

/// Unpacks the results of the machine below the folder of the run.
pub(crate) fn collect(agent: &mut Agent, run: &Path) -> Result<()> {
    agent.output(COLLECT, PATIENCE)?;
    let archive = agent.read(ARCHIVE)?;
    let folder = run.join("results");
    tar::Archive::new(archive.as_slice())
        .unpack(&folder)
        .with_context(|| format!("failed to unpack the results to {}", folder.display()))
}
