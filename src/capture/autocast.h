#pragma once

namespace dtorch {

void register_autocast();

}  // namespace dtorch
