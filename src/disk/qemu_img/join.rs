//! Writes what the files of a disk show together to a new file.
//!
//! Invariant: which file is under another one is said here; what headers say of other files is not followed. Where
//! the new file can have the blocks of all the others, the kernel shares them. The program stops that at the first
//! compressed cluster, which images have. So what is under a disk is written first, and then each layer in a run of
//! its own, which adds what that layer has itself; the result is that of one run.
//! Failure: what the program reported; the caller removes the new file.

use std::fs::File;

use serde_json::{Value, json};

use super::pulled::alone;
use super::{Lent, QemuImg, Time, blocks, path_of, run};
use crate::foreign::Open;
use crate::images::Format;

/// What the program is given for a file that has no name, and that it does not open.
const UNDER: &str = "under";

/// The files of a disk: its layers, the uppermost one first, and the image under the last one.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) layers: Vec<Layer>,
    pub(super) image: Option<Image>,
}

/// A file of differences from what is under it.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) file: Open<File>,
    /// The right of the program to read it.
    pub(super) lent: Lent,
    /// The virtual size in its header, which an emulator may have written.
    pub(super) size: u64,
}

/// The file of an image.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) file: Open<File>,
    pub(super) format: Format,
    /// The virtual size in its header; 0 where that says none.
    pub(super) size: u64,
}

/// The largest sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    /// Of the new file.
    pub(super) file: u64,
    /// Of what its guest sees.
    pub(super) disk: u64,
}

/// What one run of the program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// All that the disk shows.
    Whole,
    /// What the image shows.
    Image,
    /// What a layer has, beside what is under it.
    Layer(usize),
}

/// How a disk is written.
#[derive(Debug)]
struct Plan {
    passes: Vec<Pass>,
    /// Whether the kernel shares blocks.
    is_shared: bool,
}

/// A file with those under it.
#[derive(Debug)]
struct Described {
    as_json: Value,
    files: Vec<Open<File>>,
}

impl QemuImg {
    /// Writes all that a disk shows to a file, which is empty; `progress` gets percents.
    pub(super) async fn join(
        &self,
        chain: &Chain,
        to: &Lent,
        most: Most,
        mut progress: impl FnMut(u8),
    ) -> Result<(), String> {
        let plan = chain.plan(to).await?;
        let all = plan.passes.len();
        for (done, pass) in plan.passes.into_iter().enumerate() {
            let described = chain.describe(pass)?;
            let report = |percent: u8| progress(percent_of_all(done, all, percent));
            let Described { as_json, mut files } = described;
            let target = to.inherited()?;
            let name = path_of(&target);
            files.push(target);
            let time = Time::long(most.disk);
            let mut program = self.program(files, most.file, time);
            // A program that outlives this process keeps no machine from its disk.
            program.args(["convert", "-p", "-U", "-O", "qcow2"]);
            program.args(plan.is_shared.then_some(blocks::SHARE));
            if matches!(pass, Pass::Layer(_)) {
                program.args(["-n", "-B", UNDER, "-F", "qcow2"]);
            }
            program.arg(format!("json:{as_json}")).arg(name);
            run(program, to, time, report).await?;
            if pass == Pass::Image
                && let Some(size) = chain.size_above_image()
            {
                self.resize(to, size, most.file).await?;
            }
        }
        Ok(())
    }
}

impl Chain {
    async fn plan(&self, to: &Lent) -> Result<Plan, String> {
        let layers = self.layers.iter().map(|layer| &layer.file);
        let image = self.image.as_ref().map(|image| &image.file);
        let files: Vec<_> = layers.chain(image).collect();
        for file in files {
            if !to.can_share_blocks_of(file).await? {
                let passes = vec![Pass::Whole];
                return Ok(Plan {
                    passes,
                    is_shared: false,
                });
            }
        }
        let layers = (0..self.layers.len()).rev().map(Pass::Layer);
        let passes = if self.may_be_compressed() && self.is_in_order() {
            std::iter::once(Pass::Image).chain(layers).collect()
        } else {
            vec![Pass::Whole]
        };
        Ok(Plan {
            passes,
            is_shared: true,
        })
    }

    /// Emulators compress nothing.
    fn may_be_compressed(&self) -> bool {
        let image = self.image.as_ref();
        image.is_some_and(|image| image.format == Format::Qcow2)
    }

    /// Whether no file under the disk has more room than that.
    fn is_in_order(&self) -> bool {
        let under = self.layers.iter().map(|layer| layer.size);
        let most = under.chain(self.image.as_ref().map(|image| image.size));
        let first = self.layers.first();
        first.is_some_and(|disk| most.max().is_none_or(|most| most <= disk.size))
    }

    /// The size of the disk, where that is larger than its image.
    fn size_above_image(&self) -> Option<u64> {
        let size = self.layers.first()?.size;
        let image = self.image.as_ref()?;
        Some(size).filter(|size| *size > image.size)
    }

    fn describe(&self, pass: Pass) -> Result<Described, String> {
        let first = match pass {
            Pass::Whole => 0,
            Pass::Image => self.layers.len(),
            Pass::Layer(layer) => layer,
        };
        let mut files = Vec::new();
        let mut as_json = Value::Null;
        if let Some(image) = &self.image {
            as_json = alone(image.format, &image.file);
            files.push(image.file.clone());
        }
        for layer in self.layers[first..].iter().rev() {
            let file = layer.lent.inherited()?;
            let name = json!({"driver": "file", "filename": path_of(&file)});
            as_json = json!({"driver": "qcow2", "file": name, "backing": as_json});
            files.push(file);
        }
        Ok(Described { as_json, files })
    }
}

/// How far all passes are, where some are done and the next one is so far.
fn percent_of_all(done: usize, all: usize, percent: u8) -> u8 {
    let sum = done * 100 + usize::from(percent.min(100));
    u8::try_from(sum / all.max(1)).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_several_runs_is_one() {
        let shown =
            [(0, 0), (0, 100), (1, 50), (2, 100)].map(|run| percent_of_all(run.0, 3, run.1));
        assert_eq!(shown, [0, 33, 50, 100]);
    }
}
