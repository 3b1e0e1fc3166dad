-- Berth decides at the end of the body. These headers wait for that, then say what was chosen.
function envoy_on_request(handle)
  local headers = handle:headers()
  -- A client must not choose its pod, also when Berth is bypassed.
  for _, name in ipairs({@STRIP@}) do
    headers:remove(name)
  end
  if handle:streamInfo():filterState():get("wasm.@WAIT@") == nil then
    return
  end
  handle:body()
  -- What was taken from the handle before that wait is no longer valid.
  headers = handle:headers()
  local state = handle:streamInfo():filterState()
  for name, header in pairs({@HEADERS@}) do
    local value = state:get("wasm." .. name)
    if value ~= nil then
      headers:replace(header, value)
    end
  end
  local pods = state:get("wasm.@ENDPOINTS@")
  if pods ~= nil then
    @APPLY@
  end
end
