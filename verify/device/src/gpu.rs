//! A GPU by the CUDA driver's interface, whose library is looked for when the program runs; and this processor in its place, which
//! shows that jobs, memory and comparison are right where there is no GPU.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use std::ffi::CString;
use veriep_core::fabric::raw::Segment;

/// What went wrong, in a line.
pub(crate) type Wrong = Box<dyn std::error::Error>;

/// Who runs the kernels.
#[derive(Clone, Copy)]
pub(crate) enum Device {
    Gpu(sys::CUdevice, sys::CUmodule),
    /// This processor: a thread of its own for each block.
    Processor,
}

impl Device {
    /// The machine's first GPU, if there is one, with kernels loaded: PTX, or a cubin.
    pub(crate) fn gpu(mut image: Vec<u8>) -> Result<Option<Self>, Wrong> {
        image.push(0);
        // SAFETY: it only looks for the library.
        if !unsafe { sys::is_culib_present() } || result::init().is_err() || result::device::get_count()? == 0
        {
            return Ok(None);
        }
        let device = result::device::get(0)?;
        // SAFETY: the device is there; the context lives as long as the program.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?)? };
        // Litmus programs call through pointers, so the depth of their stack is unknown.
        result::ctx::set_limit(sys::CUlimit_enum::CU_LIMIT_STACK_SIZE, 4096)?;
        // SAFETY: the image is PTX that ends with a zero byte, or a cubin, which knows its length.
        let module = unsafe { result::module::load_data(image.as_ptr().cast())? };
        Ok(Some(Self::Gpu(device, module)))
    }

    pub(crate) fn name(self) -> Result<String, Wrong> {
        match self {
            Self::Gpu(device, _) => Ok(result::device::get_name(device)?),
            Self::Processor => Ok("this processor, with a thread for each block".into()),
        }
    }

    /// A kernel by its name; the processor has but one.
    pub(crate) fn kernel(self, name: &str) -> Result<Kernel, Wrong> {
        let Self::Gpu(_, module) = self else { return Ok(Kernel { device: self, function: None }) };
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, CString::new(name)?)? };
        Ok(Kernel { device: self, function: Some(function) })
    }

    /// Memory that is zero.
    pub(crate) fn zeros(self, len: usize) -> Result<Buffer, Wrong> {
        if let Self::Processor = self {
            let mut words = vec![0u64; len.div_ceil(8).max(1)];
            return Ok(Buffer {
                at: words.as_mut_ptr().expose_provenance() as u64,
                len,
                of_processor: Some(words),
            });
        }
        let allocated = len.max(8);
        // SAFETY: nothing reads what is not written.
        let at = unsafe { result::malloc_sync(allocated)? };
        // SAFETY: as long as what was allocated.
        unsafe { result::memset_d8_sync(at, 0, allocated)? };
        Ok(Buffer { at, len, of_processor: None })
    }
}

pub(crate) struct Kernel {
    device: Device,
    function: Option<sys::CUfunction>,
}

impl Kernel {
    /// Registers and bytes of local memory for each thread.
    pub(crate) fn footprint(&self) -> Result<Option<(i32, i32)>, Wrong> {
        let Some(function) = self.function else { return Ok(None) };
        // SAFETY: the function belongs to a module that is loaded.
        let of = |attribute| unsafe { result::function::get_function_attribute(function, attribute) };
        Ok(Some((
            of(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            of(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        )))
    }

    /// Runs a block for each job until all have ended, and returns the jobs with their answers. Here it is `run` that does one.
    ///
    /// # Safety
    /// Pointers of jobs are of buffers that live, no two jobs are of one core, and the kernel is for such jobs.
    pub(crate) unsafe fn launch<J: Copy>(
        &self,
        jobs: &[J],
        threads: u32,
        run: unsafe fn(*mut J),
    ) -> Result<Vec<J>, Wrong> {
        let mut after = jobs.to_vec();
        if let Some(function) = self.function {
            let memory = self.device.zeros(size_of_val(jobs))?;
            let mut at = memory.at;
            let mut parameters = [(&raw mut at).cast()];
            // SAFETY: the buffer is as long as the jobs; the kernel takes one pointer.
            unsafe {
                result::memcpy_htod_sync(at, jobs)?;
                let (grid, block) = ((jobs.len() as u32, 1, 1), (threads, 1, 1));
                result::launch_kernel(function, grid, block, 0, std::ptr::null_mut(), &mut parameters)?;
                result::ctx::synchronize()?;
                result::memcpy_dtoh_sync(&mut after, at)?;
            }
        } else {
            std::thread::scope(|scope| {
                for job in &mut after {
                    let job = OfThread(job);
                    // SAFETY: the caller's promise; all are done at once.
                    scope.spawn(move || unsafe { run({ job }.0) });
                }
            });
        }
        Ok(after)
    }
}

struct OfThread<J>(*mut J);

// SAFETY: the code that makes one leaves the job to that thread.
unsafe impl<J> Send for OfThread<J> {}

/// Memory of the device.
pub(crate) struct Buffer {
    at: sys::CUdeviceptr,
    len: usize,
    /// What it is when it is no memory of a GPU.
    of_processor: Option<Vec<u64>>,
}

impl Buffer {
    pub(crate) fn segment(&self) -> Segment {
        Segment::new(std::ptr::with_exposed_provenance_mut(self.at as usize), self.len as u64)
    }

    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<(), Wrong> {
        self.fill_at(0, bytes)
    }

    pub(crate) fn fill_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Wrong> {
        self.part(offset, bytes.len())?;
        // SAFETY: inside the buffer; no kernel runs.
        unsafe {
            match self.of_processor {
                Some(_) => {
                    self.segment().base().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
                }
                None => result::memcpy_htod_sync(self.at + offset as u64, bytes)?,
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>, Wrong> {
        self.read_at(0, self.len)
    }

    pub(crate) fn read_at(&self, offset: usize, len: usize) -> Result<Vec<u8>, Wrong> {
        self.part(offset, len)?;
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        unsafe {
            match self.of_processor {
                Some(_) => self.segment().base().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len),
                None => result::memcpy_dtoh_sync(&mut bytes, self.at + offset as u64)?,
            }
        }
        Ok(bytes)
    }

    fn part(&self, offset: usize, len: usize) -> Result<(), Wrong> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if fits { Ok(()) } else { Err("more than a buffer of the device holds".into()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.of_processor.is_none() {
            // SAFETY: it was allocated so, and no kernel runs.
            let _: Result<(), DriverError> = unsafe { result::free_sync(self.at) };
        }
    }
}
