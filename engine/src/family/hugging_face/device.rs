//! The device that candle computes on.

use crate::{
    error::{Error, Result},
    family::settings::DeviceChoice,
};
use candle_core::Device;

/// Opens a device. Fails if the binary was built without it, or the system does not have it.
pub(super) fn open(choice: DeviceChoice) -> Result<Device> {
    let unavailable = |bound: String| Error::bad_option("--device", choice.to_string(), bound);
    let missing = |feature: &str| format!("cpu (this binary was built without the feature {feature})");
    let broken = |error: candle_core::Error| unavailable(format!("a device that can be opened ({error})"));
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(_) if !cfg!(feature = "cuda") => Err(unavailable(missing("cuda"))),
        DeviceChoice::Metal if !cfg!(feature = "metal") => Err(unavailable(missing("metal"))),
        DeviceChoice::Cuda(index) => Device::new_cuda(index).map_err(broken),
        DeviceChoice::Metal => Device::new_metal(0).map_err(broken),
    }
}
