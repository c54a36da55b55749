//! Headless Neovim types into a file and takes a completion. The test is skipped with a message if Neovim is not installed, unless
//! `WEIR_REQUIRE_NEOVIM=1`.
#![cfg(unix)]

use super::{
    super::{process::Program, support::converted},
    Client, Options, at, inserted,
};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Maximum wait for the editor to reach a state.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Starts the language server for the file of the command line.
const INIT: &str = r"
vim.o.swapfile = false
vim.api.nvim_create_autocmd('VimEnter', { callback = function()
  local config = { name = 'weir', cmd = { vim.env.WEIR, 'lsp', '--threads', '1' } }
  if vim.lsp.start then
    vim.lsp.start(config)
  else
    vim.lsp.buf_attach_client(0, vim.lsp.start_client(config))
  end
  vim.bo.omnifunc = 'v:lua.vim.lsp.omnifunc'
end })
function _G.is_ready()
  for _, client in pairs((vim.lsp.get_clients or vim.lsp.get_active_clients)()) do
    if client.initialized then return 1 end
  end
  return 0
end
";

/// A running editor.
struct Neovim {
    program: Program,
    folder: TempDir,
}

impl Neovim {
    /// Opens a file with `text`. Returns `None` if Neovim is not installed.
    fn start(text: &str) -> Option<Self> {
        let required = std::env::var_os("WEIR_REQUIRE_NEOVIM").is_some_and(|value| value == "1");
        let found = Command::new("nvim").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            assert!(!required, "nvim is required, and not installed");
            eprintln!("skipped: nvim is not installed");
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("init.lua"), INIT).unwrap();
        fs::write(folder.path().join("text"), text).unwrap();
        let mut command = Command::new("nvim");
        command.args(["--headless", "-i", "NONE", "-u", "init.lua", "--listen", "socket", "text"]);
        command.current_dir(folder.path()).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        command.env("WEIR", env!("CARGO_BIN_EXE_weir")).env("WEIR_MODEL", converted("whitespaces"));
        let neovim = Self { program: Program::start(&mut command), folder };
        neovim.wait_for("luaeval('is_ready()')", "1");
        Some(neovim)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("text")
    }

    /// Sends one command to the editor. Returns what it printed, as an error if it failed.
    fn remote(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("nvim");
        let output = command.args(["--headless", "--server", "socket"]).args(arguments).current_dir(self.folder.path());
        let output = output.env("HOME", self.folder.path()).output().unwrap();
        // some versions print results to stderr
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap().trim().to_owned();
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    /// Types keys.
    fn type_keys(&self, keys: &str) {
        self.remote(&["--remote-send", keys]).unwrap();
    }

    /// Quits the editor and expects its success.
    fn quit(mut self) {
        // The editor may close the connection before it answers, and then the remote command fails. Its own exit status counts.
        let answer = self.remote(&["--remote-send", ":qa!<CR>"]);
        assert!(self.program.wait().success(), "{answer:?}: {}", self.program.stderr());
    }

    /// Waits until an expression has this value.
    fn wait_for(&self, expression: &str, expected: &str) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let found = self.remote(&["--remote-expr", expression]);
            if found.as_deref() == Ok(expected) {
                return;
            }
            let errors = self.program.stderr();
            assert!(Instant::now() < end, "{expression} is {found:?}, not {expected:?}: {errors}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_completion_is_taken_while_typing() {
    let Some(neovim) = Neovim::start("a 😀 b\nthe r\n") else { return };
    // After a character of two UTF-16 units, and at the end of another line.
    neovim.type_keys("ggA é😀c<Esc>02lxGAiv<C-x><C-o>");
    neovim.wait_for("pumvisible()", "1");
    let model = converted("whitespaces");
    let (mut client, _) = Client::start(&Options::process(&model));
    client.open("a", "a  b é😀c\nthe riv");
    let expected = client.ask("textDocument/completion", at("a", 1, 7));
    let words = inserted(&expected);
    neovim.wait_for("join(map(complete_info(['items']).items, 'v:val.word'))", &words.join(" "));
    // The second one.
    neovim.type_keys("<C-n><C-y> end<Esc>:w<CR>");
    let written = format!("a  b é😀c\nthe {} end\n", words[1]);
    neovim.wait_for("&modified", "0");
    assert_eq!(fs::read_to_string(neovim.file()).unwrap(), written);
    neovim.quit();
    client.shut_down();
}
