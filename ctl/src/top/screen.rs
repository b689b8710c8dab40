//! `sanctl top` on a terminal: a table that is drawn again each interval, and keys.

use super::columns::{fitting, Column, CONNECTIONS, PROCESSES};
use super::rates::{Row, Sampler};
use super::view::{ShownRows, View};
use crate::cli::TopLine;
use crate::units::bytes;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Table};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a key is waited for at most, before signals are looked for.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Shows the table until a key or a signal ends it. Afterwards the terminal is as it was, even after a panic.
///
/// # Errors
/// Those of the terminal.
pub(super) fn show(view: View, interval: Duration) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let mut terminal = ratatui::try_init()?;
    let result = Screen::new(view).run(&mut terminal, interval, &ended);
    ratatui::restore();
    result
}

struct Screen {
    view: View,
    sampler: Sampler,
    rows: Vec<Row>,
    /// How many rows are scrolled away.
    first: usize,
    is_paused: bool,
}

/// What a key asks for.
#[derive(PartialEq)]
enum Next {
    Draw,
    End,
}

impl Screen {
    fn new(view: View) -> Screen {
        Screen { view, sampler: Sampler::default(), rows: Vec::new(), first: 0, is_paused: false }
    }

    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        interval: Duration,
        ended: &AtomicBool,
    ) -> io::Result<()> {
        let mut due = Instant::now();
        while !ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= due {
                if !self.is_paused {
                    self.rows = self.sampler.take(&super::look(&self.view.filter), now);
                }
                terminal.draw(|frame| self.draw(frame))?;
                due = now + interval;
            }
            if !event::poll(due.saturating_duration_since(Instant::now()).min(LONGEST_WAIT))? {
                continue;
            }
            let next = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    self.press(key, page(terminal)?)
                }
                _ => Next::Draw,
            };
            match next {
                Next::Draw => terminal.draw(|frame| self.draw(frame)).map(drop)?,
                Next::End => break,
            }
        }
        Ok(())
    }

    fn press(&mut self, key: KeyEvent, page: usize) -> Next {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Next::End
            }
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Right | KeyCode::Char('>') => self.view.turn_order(true),
            KeyCode::Left | KeyCode::Char('<') => self.view.turn_order(false),
            KeyCode::Char('p') => {
                self.view.turn_by();
                self.first = 0;
            }
            KeyCode::Char('n') => {
                self.view.not_on_san = !self.view.not_on_san;
                self.first = 0;
            }
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first += page,
            KeyCode::PageUp => self.first = self.first.saturating_sub(page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        Next::Draw
    }

    fn draw(&mut self, frame: &mut Frame) {
        let parts = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [above, middle, below] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(self.summary()), above);
        frame.render_widget(Paragraph::new(self.keys()).style(Modifier::REVERSED), below);
        let shown = self.view.arrange(&self.rows);
        let room = usize::from(middle.height).saturating_sub(1);
        self.first = self.first.min(shown.len().saturating_sub(room));
        match &shown {
            ShownRows::Connections(rows) => {
                let style = |row: &Row| {
                    Style::new().add_modifier(if row.on_san {
                        Modifier::empty()
                    } else {
                        Modifier::DIM
                    })
                };
                table(frame, middle, CONNECTIONS, &rows[self.first..], style);
            }
            ShownRows::Processes(rows) => {
                table(frame, middle, PROCESSES, &rows[self.first..], |_| Style::new())
            }
        }
    }

    fn summary(&self) -> Line<'static> {
        let rows: Vec<_> = self.view.chosen(&self.rows).collect();
        let sum = |of: fn(&Row) -> u64| rows.iter().map(|row| of(row)).sum::<u64>();
        let text = format!(
            "sanctl top: {} connections, {} on the SAN, {}/s out, {}/s in{}",
            rows.len(),
            rows.iter().filter(|row| row.on_san).count(),
            bytes(sum(|row| row.rates.sent_bytes)),
            bytes(sum(|row| row.rates.received_bytes)),
            if self.is_paused { ", paused" } else { "" },
        );
        Line::styled(text, Modifier::BOLD)
    }

    fn keys(&self) -> String {
        let other = match self.view.by {
            TopLine::Connection => "processes",
            TopLine::Process => "connections",
        };
        let others = if self.view.not_on_san { "all" } else { "not on SAN" };
        format!(
            "q quit  <> sort: {}  p {other}  n {others}  space pause  ↑↓ scroll",
            self.view.order.name()
        )
    }
}

/// How many rows fit on the screen.
fn page(terminal: &DefaultTerminal) -> io::Result<usize> {
    Ok(usize::from(terminal.size()?.height).saturating_sub(3).max(1))
}

fn table<Of>(
    frame: &mut Frame,
    area: Rect,
    columns: &[Column<Of>],
    rows: &[Of],
    style: impl Fn(&Of) -> Style,
) {
    let columns = &columns[..fitting(columns, usize::from(area.width))];
    let cell = |column: &Column<Of>, text: String| {
        let side = if column.is_number { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text).alignment(side))
    };
    let heading = columns.iter().map(|column| cell(column, column.heading.to_owned()));
    let heading = ratatui::widgets::Row::new(heading).style(Modifier::REVERSED);
    let visible = rows.iter().take(usize::from(area.height));
    let lines = visible.map(|row| {
        let cells = columns.iter().map(|column| cell(column, column.cell(row)));
        ratatui::widgets::Row::new(cells).style(style(row))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width as u16));
    frame.render_widget(Table::new(lines, widths).header(heading).column_spacing(1), area);
}
