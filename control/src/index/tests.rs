//! The rules of the Service API, a file for each table of them; every test is named after its rule.

mod changes;
mod health;
mod hostile;
mod objects_that_count;
mod selection;
mod served_at;
mod table_entries;
mod words;
