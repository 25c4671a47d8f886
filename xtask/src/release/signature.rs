//! The signature of `SHA256SUMS`, in the format of OpenSSH.
//!
//! Invariant: the key is read by `ssh-keygen` alone, which also asks for its passphrase, or has it of an agent.
//! Failure: ssh-keygen's message.

use std::path::Path;

use anyhow::{Context, Result};

use super::sums;
use crate::run;

/// What the signature is for: one that was made for something else does not count.
const NAMESPACE: &str = "vmlet-release";

/// Signs the list of a release's digests.
pub(crate) fn write(key: &Path, folder: &Path) -> Result<()> {
    let mut program = run::command("ssh-keygen");
    program.args(["-Y", "sign", "-q", "-n", NAMESPACE, "-f"]);
    run::output(program.arg(key).arg(folder.join(sums::FILE)))
        .map(drop)
        .context("sign the list of digests")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;

    use super::*;

    #[test]
    fn a_user_verifies_the_signature_by_the_public_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        let mut program = run::command("ssh-keygen");
        program.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]);
        run::output(program.arg(&key)).unwrap();
        let sums = dir.path().join(sums::FILE);
        fs::write(&sums, "digest  file\n").unwrap();
        write(&key, dir.path()).unwrap();

        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let signers = dir.path().join("signers");
        fs::write(&signers, format!("release@vmlet.dev {public}")).unwrap();
        let verify = |namespace: &str| {
            let mut program = run::command("ssh-keygen");
            program.args(["-Y", "verify", "-I", "release@vmlet.dev", "-n", namespace]);
            program.arg("-f").arg(&signers);
            program.arg("-s").arg(dir.path().join(sums::SIGNATURE));
            run::output(program.stdin(File::open(&sums).unwrap()))
        };
        verify(NAMESPACE).unwrap();
        assert!(verify("git").is_err());
        fs::write(&sums, "another  file\n").unwrap();
        assert!(verify(NAMESPACE).is_err());
    }
}
