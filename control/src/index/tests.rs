//! The rules of the Service API, a file for each table of them; every test is named after its rule.

mod changes;
mod frontends;
mod health;
mod hostile;
mod objects_that_count;
mod room;
mod selection;
mod words;
