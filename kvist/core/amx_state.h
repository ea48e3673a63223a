// SPDX-License-Identifier: MIT
// Keeps one library's AMX tile configuration through the calls of another on the same thread.
#pragma once

namespace kvist {

// Asks the system once for the right to use AMX tiles; false where CPU or system have none.
bool amx_tiles_usable() noexcept;

// ggml configures the tiles of a thread once and relies on that for ever, while every other user of
// AMX configures and releases them as it goes. This puts the thread's configuration back at the end
// of its scope. Tile contents are lost.
class KeepAmxState {
 public:
  KeepAmxState() noexcept;
  ~KeepAmxState();
  KeepAmxState(const KeepAmxState&) = delete;
  KeepAmxState& operator=(const KeepAmxState&) = delete;

 private:
  alignas(64) unsigned char config_[64] = {};
};

}  // namespace kvist
