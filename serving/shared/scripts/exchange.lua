-- One replica tells what it uses of some limits and is granted room: one step, so that no two replicas are
-- granted the same tokens. For every limit: sum of use and room over all replicas <= limit. Numbers are
-- absolute, so telling twice changes nothing. Time is this server's own.
--
-- KEYS: members, recalls, then one key for each pool.
-- ARGV: replica, number of the call, lease in us, replicas at least, exact, leaving; then for each pool:
--       name, length in us (0: tokens held), sliding, limit, burst, period, used, keep, need, want, carries.
-- A pool is a hash: replica -> "used room period seen_us short", and for calendar windows @period, @credit.
-- Returns: state (1 known, 0 new here, -1 overtaken by a later call), live replicas, time in us, number of
--          recalled pools, their names, then for each pool: room, reachable, used elsewhere, contended.
local me, call, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local replicas, exact, leaving = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6] == '1'
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local HELD_MS = 3600000

local live, known, count, born, gone = {}, 0, 1, nil, false
local members = redis.call('HGETALL', KEYS[1])
for i = 1, #members, 2 do
  local id, told = members[i], members[i + 1]
  if id == '@born' then
    born = tonumber(told)
  else
    local till, at = told:match('^(%d+) (%d+)$')
    if id == me then
      if call <= tonumber(at) then return {-1, 0, now, 0} end
      if tonumber(till) > now then known = 1 else gone = true end
    elseif tonumber(till) > now then
      live[id] = true
      count = count + 1
    else
      redis.call('HDEL', KEYS[1], id)
      gone = true
    end
  end
end
-- Every lease has passed unheard: the server was away, and may have come back with what it knew long ago.
if gone and known == 0 and count == 1 then born = nil end
if not born then
  born = now
  redis.call('HSET', KEYS[1], '@born', string.format('%.0f', now))
end
if leaving then
  redis.call('HDEL', KEYS[1], me)
else
  redis.call('HSET', KEYS[1], me, string.format('%.0f %.0f', now + lease, call))
end
redis.call('PEXPIRE', KEYS[1], HELD_MS)

local answer = {known, count, now, 0}
local recalls = redis.call('HGETALL', KEYS[2])
for i = 1, #recalls, 2 do
  local id, name = recalls[i]:match('^(%S+) (.+)$')
  if id == me or not live[id] then redis.call('HDEL', KEYS[2], recalls[i]) end
  if id == me then
    answer[4] = answer[4] + 1
    answer[#answer + 1] = name
  end
end

-- What a calendar window that is over leaves to the next ones.
local function credit_of(rows, period, limit, burst)
  local last, credit, used = tonumber(rows['@period'] or period), tonumber(rows['@credit'] or 0), 0
  if last >= period then return last, math.min(credit, burst) end
  for id, row in pairs(rows) do
    if id:sub(1, 1) ~= '@' then
      local theirs, _, of = row:match('^(%d+) (%d+) (%d+)')
      if tonumber(of) == last then used = used + tonumber(theirs) end
    end
  end
  return period, math.min(burst, math.max(0, limit + credit - used) + (period - last - 1) * limit)
end

local carried_need, carried_want = 0, 0
for p = 3, #KEYS do
  local key, a = KEYS[p], 7 + (p - 3) * 11
  local name, length, sliding = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2] == '1'
  local limit, burst, told_period = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local used, keep = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  local need, want = tonumber(ARGV[a + 8]) + carried_need, tonumber(ARGV[a + 9]) + carried_want
  local carries = ARGV[a + 10] == '1'
  local calendar = length > 0 and not sliding
  local period = calendar and math.floor(now / length) or 0
  local flat, rows = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do rows[flat[i]] = flat[i + 1] end
  local credit, credit_period = 0, period
  if calendar then
    credit_period, credit = credit_of(rows, period, limit, burst)
    redis.call('HSET', key, '@period', string.format('%.0f', credit_period),
      '@credit', string.format('%.0f', credit))
  end

  local elsewhere, rooms, short, holders = 0, 0, 0, {}
  for id, row in pairs(rows) do
    if id ~= me and id:sub(1, 1) ~= '@' then
      local theirs, room, of, seen, hungry = row:match('^(%d+) (%d+) (%d+) (%d+) (%d)$')
      theirs, room, of, seen = tonumber(theirs), tonumber(room), tonumber(of), tonumber(seen)
      if length == 0 then
        if not live[id] then theirs = 0 end
      elseif calendar then
        if of < period then theirs = 0 end
      elseif now - seen > length then
        theirs = 0
      end
      if not live[id] then room = 0 end
      elsewhere, rooms = elsewhere + theirs, rooms + room
      if live[id] and hungry == '1' and now - seen < lease then short = short + 1 end
      if live[id] and (room > 0 or (sliding and theirs > 0 and now - seen > length / 60)) then
        holders[#holders + 1] = id
      end
      if not live[id] and theirs == 0 then redis.call('HDEL', key, id) end
    end
  end

  local mine = used
  if calendar and told_period < period then mine = 0 end
  local free = limit + credit - elsewhere - rooms - mine
  -- A store that has just begun has not heard of everybody: until it has, each gets its share at most.
  if now - born < lease then free = math.min(free, math.floor(limit / math.max(replicas, count)) - mine) end
  local room = math.max(0, math.min(keep, free))
  local extra = math.max(0, free - room)
  if leaving then
    room = 0
  elseif want > room then
    local more = 0
    if exact then
      more = math.min(want - room, extra)
    elseif need > room then
      more = math.min(want - room, extra, math.max(math.ceil(extra / (1 + short)), need - room))
    elseif short == 0 then
      more = math.min(want - room, math.floor(extra / (2 * math.max(replicas, count))))
    end
    if carries or room + more >= need then room = room + more end
  end
  local hungry = need > room and not leaving
  carried_need, carried_want = 0, 0
  if carries and need > room then
    carried_need, carried_want = need - room, math.max(0, want - room)
  end
  if hungry then
    for _, id in ipairs(holders) do redis.call('HSET', KEYS[2], id .. ' ' .. name, '1') end
    redis.call('PEXPIRE', KEYS[2], HELD_MS)
  end
  if (leaving and length == 0) or (length > 0 and used == 0 and room == 0 and not hungry) then
    redis.call('HDEL', key, me)
  else
    redis.call('HSET', key, me, string.format('%.0f %.0f %.0f %.0f %d', used, room, told_period, now,
      hungry and 1 or 0))
  end
  redis.call('PEXPIRE', key, length == 0 and HELD_MS or math.ceil(2 * length / 1000))
  answer[#answer + 1] = room
  answer[#answer + 1] = math.max(0, free) + rooms
  answer[#answer + 1] = elsewhere
  answer[#answer + 1] = short > 0 and 1 or 0
end
return answer
