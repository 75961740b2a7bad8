//! The values that a pickle of tensors is made of.

use std::ops::Range;
use std::rc::Rc;

use crate::formats::format::Format;

/// Maximum nesting of tuples, lists and dictionaries.
pub(super) const MAX_DEPTH: usize = 8;
/// Maximum axes of a tensor.
const MAX_AXES: usize = 8;

/// A value on the stack.
#[derive(Clone)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// The bytes of an integer of more than 64 bits.
    Long(Rc<[u8]>),
    Float,
    Text(Rc<str>),
    /// Some values, and the levels of containers. Tuples may share values, so their levels are not counted again.
    Tuple(Rc<[Value]>, usize),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Tensor),
    /// A list or dictionary that the memo holds. Reading one twice is an error, because its later contents are unknown
    /// here.
    Shared,
}

/// A class or function that a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`
    Tensor,
    /// `_rebuild_parameter(tensor, requires_grad, hooks)`
    Parameter,
    Kind(Kind),
}

/// The class of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Half,
    BFloat16,
}

/// Values of one type in the file.
pub(super) struct Storage {
    pub kind: Kind,
    pub key: String,
    pub values: usize,
}

/// A tensor: some values of a storage, without gaps.
#[derive(Clone)]
pub(super) struct Tensor {
    pub storage: Rc<Storage>,
    pub first: usize,
    pub shape: Vec<usize>,
}

impl Global {
    /// Returns the global of a module.
    ///
    /// Errors with its name if it is not allowed.
    pub(super) fn find(module: &str, name: &str) -> Result<Self, String> {
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Ok(Self::Tensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Self::Parameter),
            ("torch", "FloatStorage") => Ok(Self::Kind(Kind::Float)),
            ("torch", "HalfStorage") => Ok(Self::Kind(Kind::Half)),
            ("torch", "BFloat16Storage") => Ok(Self::Kind(Kind::BFloat16)),
            _ => Err(format!("its pickle names `{module}.{name}`, which is not allowed")),
        }
    }
}

impl Kind {
    pub(super) fn format(self) -> Format {
        match self {
            Self::Float => Format::F32,
            Self::Half => Format::F16,
            Self::BFloat16 => Format::Bf16,
        }
    }

    /// Returns the bytes of a value.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Float => 4,
            Self::Half | Self::BFloat16 => 2,
        }
    }
}

impl Value {
    /// Creates a tuple.
    pub(super) fn tuple(values: Vec<Value>) -> Self {
        let depth = 1 + values.iter().map(Self::depth).max().unwrap_or(0);
        Self::Tuple(values.into(), depth)
    }

    /// Returns the levels of containers, this one included.
    pub(super) fn depth(&self) -> usize {
        let deepest = |values: &mut dyn Iterator<Item = &Value>| 1 + values.map(Self::depth).max().unwrap_or(0);
        match self {
            Self::Tuple(_, depth) => *depth,
            Self::List(values) => deepest(&mut values.iter()),
            Self::Dict(entries) => deepest(&mut entries.iter().map(|(_, value)| value)),
            _ => 0,
        }
    }

    /// Returns the value of a key, if this is a dictionary that has it.
    pub(super) fn at(&self, wanted: &str) -> Option<&Value> {
        let Self::Dict(entries) = self else { return None };
        let is_wanted = |key: &Value| matches!(key, Value::Text(key) if **key == *wanted);
        entries.iter().find(|(key, _)| is_wanted(key)).map(|(_, value)| value)
    }

    /// Returns a size or a place.
    fn number(&self) -> Option<usize> {
        match self {
            Self::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn numbers(&self) -> Option<Vec<usize>> {
        let Self::Tuple(values, _) = self else { return None };
        (values.len() <= MAX_AXES).then(|| values.iter().map(Self::number).collect()).flatten()
    }
}

impl Storage {
    /// Creates the storage of a persistent id: `('storage', class, key, device, number of values)`.
    pub(super) fn new(id: &Value) -> Result<Self, String> {
        const WRONG: &str = "its pickle refers to something else than a storage";
        let Value::Tuple(id, _) = id else { return Err(WRONG.to_string()) };
        match (id.len(), &id[..]) {
            (
                5 | 6,
                [Value::Text(what), Value::Global(Global::Kind(kind)), Value::Text(key), Value::Text(_), values, ..],
            ) if **what == *"storage" && id.get(5).is_none_or(|view| matches!(view, Value::None)) => {
                let values = values.number().ok_or(WRONG)?;
                Ok(Self { kind: *kind, key: key.to_string(), values })
            }
            _ => Err(WRONG.to_string()),
        }
    }
}

impl Tensor {
    /// Creates the tensor of the arguments of `_rebuild_tensor_v2`.
    pub(super) fn new(arguments: &[Value]) -> Result<Self, String> {
        const WRONG: &str = "its pickle has a tensor in an unknown form";
        let [Value::Storage(storage), first, shape, strides, Value::Bool(_), hooks, ..] = arguments else {
            return Err(WRONG.to_string());
        };
        let no_hooks = matches!(hooks, Value::Dict(entries) if entries.is_empty());
        let first = first.number().filter(|_| no_hooks).ok_or(WRONG)?;
        let (shape, strides) = (shape.numbers().ok_or(WRONG)?, strides.numbers().ok_or(WRONG)?);
        let mut expected = 1usize;
        for (axis, stride) in shape.iter().zip(&strides).rev() {
            if *axis > 1 && *stride != expected {
                return Err(format!(
                    "its pickle has a tensor {shape:?} with strides {strides:?}, expected rows one after the other"
                ));
            }
            expected = expected.checked_mul(*axis).ok_or(WRONG)?;
        }
        if shape.len() != strides.len() || first.checked_add(expected).is_none_or(|end| end > storage.values) {
            return Err(format!("its pickle has a tensor {shape:?} that is larger than its storage"));
        }
        Ok(Self { storage: Rc::clone(storage), first, shape })
    }

    pub(super) fn format(&self) -> Format {
        self.storage.kind.format()
    }

    /// Returns the place in the file, of a storage with these bytes.
    pub(super) fn range(&self, storage: Range<usize>) -> Result<Range<usize>, String> {
        let bytes = self.storage.kind.bytes();
        let values: usize = self.shape.iter().product();
        // `Tensor::new` checked that the sum does not overflow.
        let [start, end] = [self.first, self.first + values].map(|value| value.checked_mul(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= storage.len() => Ok(storage.start + start..storage.start + end),
            _ => Err(format!("needs {values} values, more than storage `{}` of the file has", self.storage.key)),
        }
    }
}
