//! Compiler resources of each kernel: threads of a block, registers, spills and shared memory, by architecture.
//!
//! build.rs reads them from nvcc's output, `cuda/resources.txt` stores them (`make kernels` compares), and
//! `docs/occupancy.md` shows them with the resulting occupancy of each architecture. This file uses no crate, because
//! build.rs has none.

use std::collections::BTreeMap;
use std::fmt;

/// A kernel as compiled for one architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    /// Max threads of a block, by its `__launch_bounds__`; 0 without them, or if nvcc's PTX was not found.
    pub threads: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of local memory that a thread spills for lack of registers.
    pub spilled: usize,
    /// Bytes of static shared memory of a block.
    pub shared: usize,
}

/// Kernels by file and name, then by architecture, such as `90a`.
pub type Kernels = BTreeMap<(String, String), BTreeMap<String, Resources>>;

/// Parses stderr of `nvcc --resource-usage`, without threads: kernels, by name and architecture.
pub fn in_report(report: &str) -> BTreeMap<(String, String), Resources> {
    let mut found: BTreeMap<(String, String), Resources> = BTreeMap::new();
    let mut kernel = None;
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut parts = rest.split('\'');
            let (name, arch) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
            let key = (name.to_string(), arch.trim_start_matches("sm_").to_string());
            found.insert(key.clone(), Resources::default());
            kernel = Some(key);
        } else if line.contains("Compiling") {
            kernel = None;
        } else if let Some(resources) = kernel.as_ref().and_then(|key| found.get_mut(key)) {
            let before = |what: &str| {
                let (head, _) = line.split_once(what)?;
                head.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
            };
            if let (Some(stores), Some(loads)) = (before("bytes spill stores"), before("bytes spill loads")) {
                resources.spilled = stores.max(loads);
            }
            if let Some(registers) = before("registers,") {
                resources.registers = registers;
                resources.shared = before("bytes smem").unwrap_or(0);
                kernel = None; // the following lines are about functions that the kernel calls
            }
        }
    }
    found
}

/// Returns the max threads of a block of each kernel in a PTX file, from `__launch_bounds__`.
pub fn threads_in_ptx(ptx: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut kernel = None;
    for line in ptx.lines() {
        if let Some((_, rest)) = line.split_once(".entry ") {
            kernel = Some(rest.trim_end_matches('(').trim().to_string());
        } else if let Some(sizes) = line.trim().strip_prefix(".maxntid ").or(line.trim().strip_prefix(".reqntid ")) {
            let sizes = sizes.split(',').map(|size| size.trim().parse::<usize>().unwrap_or(1));
            found.extend(kernel.take().map(|kernel| (kernel, sizes.product())));
        }
    }
    found
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, registers, spilled, shared } = self;
        write!(f, "{threads}/{registers}/{spilled}/{shared}")
    }
}

impl Resources {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('/').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { threads: next()?, registers: next()?, spilled: next()?, shared: next()? })
    }
}

/// Writes one kernel per line: its file, its name, and `ARCH=THREADS/REGISTERS/SPILLED/SHARED` for each architecture.
pub fn to_text(kernels: &Kernels) -> String {
    let of_kernel = |((file, kernel), by_arch): (&(String, String), &BTreeMap<String, Resources>)| {
        let archs = by_arch.iter().map(|(arch, resources)| format!(" {arch}={resources}"));
        format!("{file} {kernel}{}\n", archs.collect::<String>())
    };
    kernels.iter().map(of_kernel).collect()
}

/// Parses the output of [`to_text`]; lines that begin with `#` are skipped.
///
/// Errors with the invalid line.
pub fn from_text(text: &str) -> Result<Kernels, String> {
    let mut kernels = Kernels::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (Some(file), Some(kernel)) = (words.next(), words.next()) else { return Err(line.to_string()) };
        let of_arch = |word: &str| {
            let (arch, resources) = word.split_once('=')?;
            Some((arch.to_string(), Resources::parse(resources)?))
        };
        let by_arch: Option<BTreeMap<_, _>> = words.map(of_arch).collect();
        kernels.insert((file.to_string(), kernel.to_string()), by_arch.ok_or_else(|| line.to_string())?);
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : Function properties for attention
    48 bytes stack frame, 36 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8320 bytes smem, 460 bytes cmem[0]
ptxas info    : Compile time = 171.831 ms
ptxas info    : Function properties for exponential
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'add' for 'sm_80'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers, 400 bytes cmem[0]
";

    #[test]
    fn a_report_gives_registers_spills_and_shared_memory() {
        let of = |kernel: &str, arch: &str, [registers, spilled, shared]: [usize; 3]| {
            ((kernel.to_string(), arch.to_string()), Resources { threads: 0, registers, spilled, shared })
        };
        let expected = [of("attention", "90a", [255, 36, 8320]), of("add", "80", [18, 0, 0])];
        assert_eq!(in_report(REPORT), BTreeMap::from(expected));
    }

    #[test]
    fn ptx_gives_threads() {
        let ptx = ".visible .entry add(\n\t.param .u64 add_param_0\n)\n.maxntid 256, 1, 1\n{\n}\n\
                   .visible .entry bare()\n{\n}\n.entry square(\n)\n.reqntid 16, 16\n.maxntid 8\n{\n}\n";
        let expected = [("add", 256), ("square", 256)].map(|(name, threads)| (name.to_string(), threads));
        assert_eq!(threads_in_ptx(ptx), BTreeMap::from(expected));
    }

    #[test]
    fn text_is_read_as_it_was_written() {
        let resources = |registers| Resources { threads: 128, registers, spilled: 36, shared: 8320 };
        let by_arch = |archs: &[(&str, usize)]| {
            archs.iter().map(|(arch, registers)| (arch.to_string(), resources(*registers))).collect()
        };
        let key = |file: &str, kernel: &str| (file.to_string(), kernel.to_string());
        let kernels = Kernels::from([
            (key("attention", "attention_128"), by_arch(&[("75", 200), ("90a", 255)])),
            (key("add", "add"), by_arch(&[("80", 18)])),
        ]);
        let text = to_text(&kernels);
        assert_eq!(text.lines().next(), Some("add add 80=128/18/36/8320"));
        assert_eq!(from_text(&format!("# a line that says what this is\n{text}")).unwrap(), kernels);
        for broken in ["add", "add add 80", "add add 80=1/2/3", "add add 80=1/2/3/x"] {
            assert_eq!(from_text(broken).unwrap_err(), broken);
        }
    }
}
