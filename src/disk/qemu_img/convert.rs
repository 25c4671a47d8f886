//! Converts images of other formats to qcow2.
//!
//! Invariant: as of every use of the program; the file that it writes belongs to the image store,
//! which has claimed the space.
//! Failure: [`Unconverted`]; the store removes what was written.

use futures_util::future::BoxFuture;

use super::{QemuImg, Time, is_too_much, open_to_write, run};
use crate::helper::path_of;
use crate::images::{Conversion, Converter, Unconverted};

impl Converter for QemuImg {
    fn convert<'a>(&'a self, work: &'a Conversion) -> BoxFuture<'a, Result<(), Unconverted>> {
        Box::pin(async move {
            let converted = self.convert_image(work).await;
            converted.map_err(|reason| {
                if is_too_much(&reason) {
                    Unconverted::TooLarge
                } else {
                    Unconverted::Failed(reason)
                }
            })
        })
    }
}

impl QemuImg {
    async fn convert_image(&self, work: &Conversion) -> Result<(), String> {
        let image = self.open_image(&work.source).await?;
        let target = self.open(&work.target, "open its file", open_to_write);
        let this = self.for_run()?;
        let disk = this.lend(&target.await?).await?;
        let file = disk.inherited()?;
        let names = [path_of(&image), path_of(&file)];
        let time = Time::long(work.most);
        let mut program = this.program(vec![image, file], work.most, time);
        program.args(["convert", "-p", "-O", "qcow2", "-f", work.from.as_str()]);
        program.args(names);
        let converted = run(program, &disk, time, |_| {}).await;
        disk.take_back().await;
        converted
    }
}
