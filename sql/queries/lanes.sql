-- name: lanes
SELECT name, waiting, waiting_cost, rate, is_measured, places, line_s FROM lanes_v1();

-- name: refresh
SELECT refresh_lanes_v1(%(every_s)s) AS refreshed;
