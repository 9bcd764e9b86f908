"""The routes of all console pages."""

from __future__ import annotations

from aiohttp import web

from tidegate.http.console import action_pages, cluster_pages, group_page, login_page, overview_page, reset_pages, site


def application() -> web.Application:
    """The console application, mounted at its root path."""
    return site.application(
        [
            web.get("/", overview_page.overview),
            web.get("/group", group_page.group),
            web.get("/group/lag", group_page.lag),
            web.post("/group/delete", action_pages.delete_group),
            web.post("/group/remove-member", action_pages.remove_member),
            web.get("/reset", reset_pages.choose),
            web.post("/reset/apply", reset_pages.apply),
            web.get("/reset/undo", reset_pages.ask_undo),
            web.post("/reset/undo", reset_pages.undo),
            web.get("/topics", cluster_pages.topics_page),
            web.get("/topic", cluster_pages.topic_page),
            web.get("/brokers", cluster_pages.brokers_page),
            web.post("/brokers/drain", action_pages.drain),
            web.get("/redis", cluster_pages.redis_page),
            web.get("/producers", cluster_pages.producers_page),
            web.get("/audit", cluster_pages.audit_page),
            web.get("/audit/events", cluster_pages.audit_events_page),
            web.get("/login", login_page.login),
        ],
    )
