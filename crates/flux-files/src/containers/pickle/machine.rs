//! The opcodes that `torch.save` writes for dictionaries of tensors.
//!
//! Source: CPython `Lib/pickletools.py`.

use std::collections::HashMap;
use std::rc::Rc;

use super::value::{Global, MAX_DEPTH, Storage, Tensor, Value};
use crate::containers::cursor::Cursor;

/// Maximum opcodes of a pickle; one of a thousand tensors has 30,000.
const MAX_OPCODES: usize = 4 << 20;
/// Maximum bytes of a text.
const MAX_TEXT: usize = 4096;
/// The highest protocol that is read.
const PROTOCOL: u8 = 5;

/// The state of a running pickle.
#[derive(Default)]
pub(super) struct Machine {
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

impl Machine {
    /// Runs one pickle, and returns its value. The cursor is behind it afterwards.
    ///
    /// Errors if an opcode or a function is not allowed, or the pickle is damaged.
    pub(super) fn run(cursor: &mut Cursor<'_>) -> Result<Value, String> {
        let mut machine = Self::default();
        for _ in 0..MAX_OPCODES {
            if let Some(value) = machine.step(cursor)? {
                return Ok(value);
            }
        }
        Err("its pickle is too long".to_string())
    }

    /// Runs one opcode; returns the value of the pickle at its end.
    fn step(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Value>, String> {
        let opcode = cursor.u8()?;
        let value = match opcode {
            b'.' => return self.pop().map(Some),
            0x80 if cursor.u8()? <= PROTOCOL => return Ok(None),
            // The length of a frame.
            0x95 => {
                cursor.u64()?;
                return Ok(None);
            }
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(cursor.i32()?.into()),
            b'K' => Value::Int(cursor.u8()?.into()),
            b'M' => Value::Int(cursor.u16()?.into()),
            0x8a => {
                let length = cursor.u8()?;
                long(cursor.take(length.into())?)
            }
            b'G' => {
                cursor.u64()?;
                Value::Float
            }
            b'X' | b'T' => {
                let length = cursor.u32()? as usize;
                text(cursor, length)?
            }
            0x8c | b'U' => {
                let length = cursor.u8()?.into();
                text(cursor, length)?
            }
            b'c' => {
                let [module, name] = [cursor.line()?, cursor.line()?].map(String::from_utf8_lossy);
                Value::Global(Global::find(&module, &name)?)
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => Value::Global(Global::find(&module, &name)?),
                _ => return Err(DAMAGED.to_string()),
            },
            b')' => Value::tuple(Vec::new()),
            b']' => Value::List(Vec::new()),
            b'}' => Value::Dict(Vec::new()),
            b't' => Value::tuple(self.marked()?),
            0x85..=0x87 => Value::tuple(self.top(usize::from(opcode - 0x84))?),
            b'l' => Value::List(self.marked()?),
            b'd' => Value::Dict(pairs(self.marked()?)?),
            b'q' | b'r' | 0x94 => {
                let place = match opcode {
                    b'q' => cursor.u8()?.into(),
                    b'r' => cursor.u32()?,
                    _ => u32::try_from(self.memo.len()).map_err(|_| DAMAGED)?,
                };
                let value = match self.stack.last().ok_or(DAMAGED)? {
                    Value::List(_) | Value::Dict(_) => Value::Shared,
                    value => value.clone(),
                };
                self.memo.insert(place, value);
                return Ok(None);
            }
            b'h' | b'j' => {
                let place = if opcode == b'h' { cursor.u8()?.into() } else { cursor.u32()? };
                match self.memo.get(&place).ok_or(DAMAGED)? {
                    Value::Shared => return Err("its pickle has one list or dictionary in two places".to_string()),
                    value => value.clone(),
                }
            }
            b'Q' => Value::Storage(Rc::new(Storage::new(&self.pop()?)?)),
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                call(&function, &arguments)?
            }
            b'a' | b'e' | b's' | b'u' | b'b' => {
                let added = match opcode {
                    b'a' | b'b' => self.top(1)?,
                    b's' => self.top(2)?,
                    _ => self.marked()?,
                };
                add(self.stack.last_mut().ok_or(DAMAGED)?, added, opcode)?;
                return Ok(None);
            }
            _ => return Err(format!("its pickle has the opcode {opcode:#04x}, which is not allowed")),
        };
        if value.depth() > MAX_DEPTH {
            return Err(TOO_DEEP.to_string());
        }
        self.stack.push(value);
        Ok(None)
    }

    fn pop(&mut self) -> Result<Value, String> {
        if self.marks.last().is_some_and(|mark| self.stack.len() <= *mark) {
            return Err(DAMAGED.to_string());
        }
        self.stack.pop().ok_or_else(|| DAMAGED.to_string())
    }

    /// Removes the last `count` values.
    fn top(&mut self, count: usize) -> Result<Vec<Value>, String> {
        let lowest = self.marks.last().copied().unwrap_or(0);
        let first = self.stack.len().checked_sub(count).filter(|first| *first >= lowest).ok_or(DAMAGED)?;
        Ok(self.stack.split_off(first))
    }

    /// Removes the values behind the last mark, and the mark.
    fn marked(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().ok_or(DAMAGED)?;
        if mark > self.stack.len() {
            return Err(DAMAGED.to_string());
        }
        Ok(self.stack.split_off(mark))
    }
}

const DAMAGED: &str = "its pickle is damaged";
const TOO_DEEP: &str = "its pickle is nested too deeply";

/// Reads an integer in two's complement.
fn long(digits: &[u8]) -> Value {
    if digits.len() > 8 {
        return Value::Long(digits.into());
    }
    let sign = if digits.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
    let mut bytes = [sign; 8];
    bytes[..digits.len()].copy_from_slice(digits);
    Value::Int(i64::from_le_bytes(bytes))
}

fn text(cursor: &mut Cursor<'_>, length: usize) -> Result<Value, String> {
    if length > MAX_TEXT {
        return Err(format!("its pickle has a text of {length} bytes"));
    }
    let text = std::str::from_utf8(cursor.take(length)?).map_err(|_| DAMAGED)?;
    Ok(Value::Text(text.into()))
}

fn pairs(values: Vec<Value>) -> Result<Vec<(Value, Value)>, String> {
    let (mut pairs, mut values) = (Vec::with_capacity(values.len() / 2), values.into_iter());
    while let Some(key) = values.next() {
        pairs.push((key, values.next().ok_or(DAMAGED)?));
    }
    Ok(pairs)
}

/// Calls a function that is allowed.
fn call(function: &Value, arguments: &Value) -> Result<Value, String> {
    let (Value::Global(function), Value::Tuple(arguments, _)) = (function, arguments) else {
        return Err(DAMAGED.to_string());
    };
    match (function, &arguments[..]) {
        (Global::OrderedDict, []) => Ok(Value::Dict(Vec::new())),
        (Global::Tensor, arguments) => Tensor::new(arguments).map(Value::Tensor),
        (Global::Parameter, [Value::Tensor(tensor), Value::Bool(_), Value::Dict(hooks)]) if hooks.is_empty() => {
            Ok(Value::Tensor(tensor.clone()))
        }
        _ => Err(format!("its pickle calls {function:?} with other arguments than PyTorch")),
    }
}

/// Adds values to a list or a dictionary. The state of a dictionary of weights is the versions of its modules, and has
/// no effect.
fn add(container: &mut Value, added: Vec<Value>, opcode: u8) -> Result<(), String> {
    if added.iter().any(|value| value.depth() >= MAX_DEPTH) {
        return Err(TOO_DEEP.to_string());
    }
    match (opcode, container) {
        (b'a' | b'e', Value::List(values)) => values.extend(added),
        (b's' | b'u', Value::Dict(entries)) => entries.extend(pairs(added)?),
        (b'b', Value::Dict(_)) => {
            let is_known =
                |state: &Value| state.at("_metadata").is_some() && matches!(state, Value::Dict(all) if all.len() == 1);
            if !added.iter().all(is_known) {
                return Err("its pickle sets attributes other than `_metadata`".to_string());
            }
        }
        _ => return Err(DAMAGED.to_string()),
    }
    Ok(())
}
