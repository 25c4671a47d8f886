//! Makes disks larger.
//!
//! Invariant: a disk counts as grown before it is. What its header says of other files is not followed, since an
//! emulator that its guest has taken over may have written it.
//! Failure: [`Failed`]; the disk is left alone, and counts what its header says within the old and the new size.

use std::path::Path;

use super::run::STALL;
use super::{Failed, Lent, Loan, QemuImg, Time, look, open_to_write, path_of, run, tables};
use crate::images::{has_data_file, head_of};

impl QemuImg {
    /// Makes a disk of ours larger; one that cannot be is left alone.
    pub async fn grow(&self, path: &Path, size: u64) -> Result<(), Failed> {
        let grown = async {
            self.budget.room(path).await?;
            let before = self.budget.count(path, size).await?;
            let made = self.make_larger(path, size).await;
            if let (Err(_), Some(before), Some(sizes)) = (&made, before, self.budget.sizes()) {
                let settled = sizes.settle_growth(path, before, size).await;
                settled.map_err(|e| format!("record its size: {}", crate::one_line(&e)))?;
            }
            made
        };
        let path = path.to_owned();
        grown.await.map_err(|reason| Failed { path, reason })
    }

    pub(super) async fn make_larger(&self, path: &Path, size: u64) -> Result<(), String> {
        let file = self.open(path, "open it", open_to_write).await?;
        let this = self.for_run()?;
        let disk = this.lend(&file).await?;
        let resized = this.resize(&disk, size, u64::MAX).await;
        disk.take_back().await;
        resized
    }

    pub(super) async fn resize(&self, disk: &Lent, size: u64, room: u64) -> Result<(), String> {
        let measure = |loan: &Loan| Ok((loan.file.metadata()?, head_of(&loan.file)?));
        let (there, head) = look(&disk.loan, "measure it", measure).await?;
        // QEMU writes its disk, and an emulator that its guest has taken over writes what it likes.
        if has_data_file(&head) {
            return Err("its header names an external data file".to_owned());
        }
        let file = disk.inherited()?;
        let name = path_of(&file);
        let most = there.len().saturating_add(tables(size)).min(room);
        let time = Time::short(STALL);
        let mut program = self.program(vec![file], most, time);
        // What a header says of other files is not followed: the program has none of them open.
        let alone = serde_json::json!({
            "driver": "qcow2",
            "backing": null,
            "file": {"driver": "file", "filename": name},
        });
        program.args(["resize", "-q", &format!("json:{alone}"), &size.to_string()]);
        run(program, disk, time, |_| {}).await
    }
}
